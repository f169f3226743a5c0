"""Puts trained drafters among the bundled models, their weights in float16.

    python recipes/zoo/bundle.py --work CHECKPOINTS --out zoo/foretoken_zoo eagle medusa

takes CHECKPOINTS/eagle, as `foretoken train eagle --out CHECKPOINTS/eagle` leaves it, in as
`mini-eagle`. Drafters of another target are named by it: `--target smollm2`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import cards
import torch
from safetensors.torch import load_file, save_file


def bundle(folder: Path, out: Path, target: str) -> None:
    """One drafter's folder: weights, config.json without its training, and card."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["recipe"]  # which is in the card
    weights = load_file(folder / "model.safetensors")
    half = {name: w.half() if w.is_floating_point() else w for name, w in weights.items()}
    for name, weight in half.items():
        if not torch.isfinite(weight.float()).all():
            raise SystemExit(f"{folder}: {name} doesn't fit float16")
    name = f"{target}-{folder.name}"
    made = out / name
    if made.exists():
        shutil.rmtree(made)
    made.mkdir(parents=True)
    save_file(half, made / "model.safetensors")
    (made / "model.safetensors").chmod(0o644)  # which safetensors leaves to its owner alone
    (made / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    card = (folder / "README.md").read_text(encoding="utf-8")
    (made / "README.md").write_text(bundled_card(card, name, target), encoding="utf-8")
    print(f"{made}: {(made / 'model.safetensors').stat().st_size / 2**20:.1f} MiB")


def bundled_card(card: str, name: str, target: str) -> str:
    """The card that `foretoken train` wrote, with the bundled name, the licence and the sources."""
    card = re.sub('"model": "[^"]*"', f'"model": "{name}"', card)
    before, _, after = card.partition("## Licence\n")
    recipe = after[after.find("## ") :] if after else ""
    text = f"{before}{recipe}".rstrip() + "\n\n"
    return cards.HEADER.format(library="foretoken") + text + cards.licence(cards.DRAFTERS[target])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundled models")
    parser.add_argument("--target", choices=cards.DRAFTERS, default="mini")
    parser.add_argument("names", nargs="+", help="folders in --work")
    options = parser.parse_args()
    for name in options.names:
        bundle(options.work / name, options.out, options.target)


if __name__ == "__main__":
    main()
