"""What the trained drafters reach: mean acceptance length on the bundled prompts, greedy.

Each drafter drafts as its paper's defaults have it, from the checkpoints in --work (a folder by
each recipe's name, as `foretoken train NAME --out WORK/NAME` leaves them). The estimate made in
training is given too. Prompts whose plain answer loops are left out; ratios have 95 %
intervals, paired over prompts. Checkpoints that are not there are named and left out. Example:

    python benchmarks/trained.py --work checkpoints --check
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from lengths import WRITTEN, compared, served, telling
from page_tables import LENT
from shared import bundled, options, save, table

from foretoken.methods import METHODS as METHOD_TABLE
from foretoken.progress import track
from foretoken.train.drafter import papers_tree, trainable

METHODS = {
    "blockwise": ("blockwise", "blockwise"),
    "medusa": ("medusa", "medusa"),
    "hydra": ("hydra", "hydra"),
    "hydra++": ("hydra", "hydra-plus"),
    "eagle": ("eagle", "eagle"),
    "eagle2": ("eagle2", "eagle"),
    "eagle3": ("eagle3", "eagle3"),
    "kangaroo": ("kangaroo", "kangaroo"),
    "mtp": ("mtp", "mtp"),
    "pass": ("pass", "pass"),
    "parallel_prompt": ("parallel_prompt", "parallel_prompt"),
    "specdec": ("specdec", "specdec"),
    "dflash": ("dflash", "dflash"),
    "dflash_tree": ("dflash_tree", "dflash"),
    "glide": ("glide", "glide"),
    "glide_cape": ("glide_cape", "glide"),
}
"""Row -> method and recipe."""
LENGTHS = {"medusa": 2.0, "eagle": 2.5, "dflash": 2.0}
RATIOS = {("hydra", "medusa"): 1.0, ("eagle2", "eagle"): 1.0, ("eagle3", "eagle2"): 0.95}
"""What the first must be of the second, at least; where that is 1 the interval lies above it."""
OFF, CHAIN_OFF = 0.05, 0.01
"""How far the estimate may be from what was served, as a share; a chain's is exact at T = 0."""


def measure(given: Namespace) -> dict[str, Any]:
    there = {
        row: (method, given.work / recipe)
        for row, (method, recipe) in METHODS.items()
        if (given.work / recipe / "README.md").exists()
    }
    asked = bundled(given.limit)
    keep = telling(given.model, asked)
    counts = {}
    with track("Methods", len(there), True) as advance:
        for row, (method, folder) in there.items():
            config = {"method": method, "model": str(folder), **papers_tree(trainable(method))}
            counts[row] = served(given.model, config, 0.0, asked)
            advance()
    ratios = {
        f"{one} / {other}": {**compared(counts[other], counts[one], keep), "wanted": wanted}
        for (one, other), wanted in RATIOS.items()
        if one in counts and other in counts
    }
    return {
        "prompts": len(keep),
        "max_tokens": WRITTEN,
        "lengths": {row: compared(own, own, keep)["length"] for row, own in counts.items()},
        "cards": {row: card(folder) for row, (_, folder) in there.items()},
        "ratios": ratios,
        "left_out": [row for row in METHODS if row not in there],
    }


def card(folder: Path) -> dict[str, float]:
    """What was estimated and served on the texts that training held out."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    results = re.findall(r"^\| (estimated|served) \| ([0-9.]+) \|", text, re.MULTILINE)
    return {name: float(length) for name, length in results}


def failures(results: dict[str, Any]) -> list[str]:
    lengths = results["lengths"]
    bad = [
        f"{row}: {lengths[row]:.3f} tokens a step, wanted {wanted}"
        for row, wanted in LENGTHS.items()
        if row in lengths and lengths[row] < wanted
    ]
    for name, each in results["ratios"].items():
        reached = each["interval"][0] if each["wanted"] == 1.0 else each["ratio"]
        if reached <= each["wanted"]:
            bad.append(f"{name} is {each['ratio']:.3f}, wanted {each['wanted']}")
    for row, card in results["cards"].items():
        most = CHAIN_OFF if METHOD_TABLE[METHODS[row][0]].tree == "chain" else OFF
        off = abs(card["estimated"] / card["served"] - 1)
        if row not in LENT and off > most:
            bad.append(f"{row}: estimate and served differ by {off:.1%}, wanted {most:.0%}")
    bad += [f"{row} is not there" for row in LENGTHS if row not in lengths]
    pairs = (f"{one} / {other}" for one, other in RATIOS)
    return bad + [f"{pair} was not measured" for pair in pairs if pair not in results["ratios"]]


def show(results: dict[str, Any]) -> None:
    rows = [["", "mean acceptance length", "wanted", "held out: estimated", "served"]]
    for row, length in results["lengths"].items():
        told = [f"{results['cards'][row][key]:.3f}" for key in ("estimated", "served")]
        rows.append([row, f"{length:.3f}", str(LENGTHS.get(row, "")), *told])
    table(rows)
    print()
    rows = [["ratio", "", "95 %", "wanted"]]
    for name, each in results["ratios"].items():
        low, high = each["interval"]
        rows.append([name, f"{each['ratio']:.3f}", f"{low:.3f}-{high:.3f}", str(each["wanted"])])
    table(rows)
    if results["left_out"]:
        print(f"\nnot there: {', '.join(results['left_out'])}")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--limit", type=int, help="bundled prompts of each task (default: all)")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    given = parser.parse_args()
    results = measure(given)
    show(results)
    bad = failures(results)
    print("\n" + ("\n".join(bad) or "every bar is reached"))
    save("trained", given, {**results, "met": not bad})
    return int(bool(bad) and given.check)


if __name__ == "__main__":
    sys.exit(main())
