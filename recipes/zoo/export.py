"""Writes the two checkpoint folders with tokenizer and model card.

`python export.py --work WORK --target FOLDER --draft FOLDER --out MODELS --figures FIGURES.json`,
where the figures come from `evaluate.py --out`.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import cards
from model import load_hf, save_hf
from tokenizer import BOS_ID, EOS_ID

from foretoken.train.card import noted

CARD = """# {name}

{what} Llama-shaped: width {hidden}, {layers} layers, {heads} query and {kv_heads} key/value
heads of width {head_dim}, feed-forward width {intermediate}, vocabulary 8,192 (byte-level BPE,
pre-tokenised as Llama 3 does), head tied to the embedding; {millions:.2f} million parameters,
stored as float16.

It is a small model for trying out and testing speculative decoding in seconds on any machine. It
writes short, mostly grammatical text of the kind it is asked for and stops; it knows next to
nothing, so don't believe what it says.

    from foretoken import zoo
    zoo.path("{name}")  # a folder that AutoModelForCausalLM and AutoTokenizer load

## Held-out text

Loss per token of answers (of all tokens for running text, `lm` and `lm_de`), on documents that
were kept out of training. {noted}

{losses}
{acceptance}
## Cost, and how to make it again

{cost} {noted}

    python recipes/zoo/prepare.py --data CORPORA --work WORK
    python recipes/zoo/train.py --preset cpu --work WORK
    python recipes/zoo/distill.py --work WORK --target WORK/target

`recipes/zoo/README.md` says more.

"""
WHAT = {
    "mini": "The target of foretoken's bundled pair.",
    "mini-draft": "The drafter of foretoken's bundled pair, distilled from `mini`.",
}


def loss_table(losses: dict[str, float]) -> str:
    rows = [f"| {t} | {x:.3f} | {math.exp(x):.1f} |" for t, x in sorted(losses.items())]
    return "\n".join(["| task | loss | perplexity |", "|---|--:|--:|", *rows]) + "\n"


def acceptance_table(figures: dict[str, dict[str, float]]) -> str:
    rows = [
        f"| {task} | {f['agreement']:.2f} | {f['mean_acceptance_length']:.2f} | {f['looping']} "
        f"| {f['without_loops']:.2f} |"
        for task, f in figures.items()
    ]
    head = [
        "| task | first choices equal | tokens a pass | looping answers | without them |",
        "|---|--:|--:|--:|--:|",
    ]
    heading = (
        "\n## Acceptance\n\nGreedy answers of `mini` to held-out prompts, at most 128 tokens;"
        " drafts of four tokens; tokens a pass of the target, its own token included."
        f" Answers that loop are easily drafted. {noted()}\n\n"
    )
    return heading + "\n".join([*head, *rows]) + "\n"


def card(name: str, folder: Path, figures: dict[str, Any]) -> str:
    model = load_hf(folder)
    draft = name == "mini-draft"
    text = CARD.format(
        name=name,
        what=WHAT[name],
        millions=model.parameters_read() / 1e6,
        losses=loss_table(figures["draft_loss" if draft else "loss"]),
        acceptance=acceptance_table(figures["acceptance"]),
        noted=noted(),
        cost=figures.get("cost", {}).get(name, "Not recorded."),
        **vars(model.config),
    )
    return cards.HEADER.format(library="transformers") + text + cards.licence(cards.TRAINED)


def export(name: str, source: Path, out: Path, tokenizer: Path, figures: dict[str, Any]) -> None:
    folder = out / name
    save_hf(load_hf(source), folder)
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / file.name)
    generation = {
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (folder / "README.md").write_text(card(name, folder, figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("work", "target", "draft", "out", "figures"):
        parser.add_argument(f"--{option}", type=Path, required=True)
    args = parser.parse_args()
    figures = json.loads(args.figures.read_text())
    for name, source in (("mini", args.target), ("mini-draft", args.draft)):
        export(name, source, args.out, args.work / "tokenizer", figures)
    size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"{size / 2**20:.1f} MiB in {args.out}")


if __name__ == "__main__":
    main()
