"""Trains the drafters of SmolLM2-135M-Instruct, one after another; see README.md.

    python recipes/smollm2/train.py --target model.gguf --data prompts.jsonl --work FOLDER

A draft model is cut out of the target and distilled, twice; another of the same shape begins with
random weights and has as many steps as both together. What is finished is left alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEADS = ("eagle3", "medusa", "hydra", "dflash2", "mtp")
CUTS = {
    "middle": "--layers 15 --hidden-size 384 --intermediate-size 1024 --kv-heads 2",
    "small": "--layers 6 --hidden-size 288 --intermediate-size 768 --kv-heads 1",
}
"""What is left of the target after each cut."""
FRESH = "fresh"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="its GGUF file")
    parser.add_argument("--data", required=True, help="prompts")
    parser.add_argument("--work", type=Path, required=True, help="where everything is written")
    parser.add_argument("--only", nargs="+", default=[*HEADS, *CUTS, FRESH])
    parser.add_argument("--precision", default="auto", help="of products: auto, bfloat16, float32")
    given = parser.parse_args()
    for name in given.only:
        if not (given.work / name / "README.md").is_file():  # the card, which is written last
            train(name, given)


def train(name: str, given: argparse.Namespace) -> None:
    """One training, with the answers that all share."""
    out, texts = given.work / name, given.work / "answers"
    texts.mkdir(parents=True, exist_ok=True)
    out.mkdir(exist_ok=True)
    if not (out / "data").exists():
        (out / "data").symlink_to(texts.resolve())
    method, changes = (name, []) if name in HEADS else ("sps", changes_of(name, given))
    recipe = HERE / f"{name if name in HEADS else 'small'}.yaml"
    texts_of = ["--target", given.target, "--data", given.data, "--source", "target+target@1"]
    kept = ["--out", str(out), "--precision", given.precision]
    run("train", method, "--recipe", str(recipe), *texts_of, *kept, *changes)


def changes_of(name: str, given: argparse.Namespace) -> list[str]:
    """The model that a draft model begins as."""
    begun, unfinished = given.work / f"{name}-begun", given.work / f"{name}-unfinished"
    if not begun.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
        if name == FRESH:
            randomised(given.work / "small-begun", unfinished)
        else:
            source = given.target if name == "middle" else str(given.work / "middle")
            cut = ["--data", given.data, "--out", str(unfinished), *CUTS[name].split()]
            run("prune", source, *cut)
        unfinished.rename(begun)
    steps = ["--set", "steps=3000"] if name == FRESH else []
    return ["--set", f"shape={{model: {begun}}}", *steps]


def randomised(like: Path, out: Path) -> None:
    """A checkpoint of the same shape with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(like)).save_pretrained(out)
    AutoTokenizer.from_pretrained(like).save_pretrained(out)


def run(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "foretoken", *command], check=True)


if __name__ == "__main__":
    main()
