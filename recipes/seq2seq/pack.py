"""The results in half precision: `python pack.py pack WORK OUT`, and back: `… unpack OUT WORK`.

OUT/TASK/NAME has what WORK/TASK/NAME has, weights in float16, but neither weights nor files that
are the base's own: a shallow or block drafter is its decoder there. Unpacked, all are whole and in
float32 again, so no program needs to know.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pairs
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import drafters

WEIGHTS = "model.safetensors"
NAMES = ("base", *drafters.NAMES)
_KEY = "as_in_base"


def half(weights: dict[str, Tensor], where: Path) -> dict[str, Tensor]:
    """In float16. Ends the program where a number is too large for it."""
    found = {name: weight.to(torch.float16) for name, weight in weights.items()}
    for name, weight in found.items():
        if not weight.isfinite().all():
            raise SystemExit(f"{name} of {where} has numbers that float16 hasn't; keep it whole.")
    return found


def pack(source: Path, base: Path, goal: Path) -> None:
    goal.mkdir(parents=True, exist_ok=True)
    weights, theirs = load_file(source / WEIGHTS), load_file(base / WEIGHTS)
    files = [path.name for path in source.iterdir() if path.is_file() and path.name != WEIGHTS]
    same, copied = [], []
    if source != base:
        same = [n for n, w in weights.items() if n in theirs and torch.equal(w, theirs[n])]
        copied = [n for n in files if (base / n).is_file() and _bytes(source, n) == _bytes(base, n)]
    for name in set(files) - set(copied):
        shutil.copyfile(source / name, goal / name)
    with safe_open(source / WEIGHTS, "pt") as file:
        told = file.metadata() or {}
    told[_KEY] = json.dumps({"weights": same, "files": copied})
    left = {name: weight for name, weight in weights.items() if name not in set(same)}
    save_file(half(left, source), goal / WEIGHTS, told)


def unpack(source: Path, base: Path, goal: Path) -> None:
    """base: unpacked."""
    goal.mkdir(parents=True, exist_ok=True)
    with safe_open(source / WEIGHTS, "pt") as file:
        told = file.metadata()
    weights = {name: weight.float() for name, weight in load_file(source / WEIGHTS).items()}
    missing = json.loads(told.pop(_KEY))
    if missing["weights"]:
        whole = load_file(base / WEIGHTS)
        weights |= {name: whole[name] for name in missing["weights"]}
    for name in missing["files"]:
        shutil.copyfile(base / name, goal / name)
    for path in source.iterdir():
        if path.name != WEIGHTS:
            shutil.copyfile(path, goal / path.name)
    save_file(weights, goal / WEIGHTS, told or None)


def _bytes(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("goal", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=pairs.TASKS, default=pairs.TASKS)
    given = parser.parse_args()
    for task in given.tasks:
        for name in NAMES:
            source, goal = given.source / task / name, given.goal / task / name
            if not (source / WEIGHTS).exists():
                print(f"{task} {name} isn't there and is left out")
                continue
            if given.what == "pack":
                pack(source, given.source / task / "base", goal)
            else:
                unpack(source, given.goal / task / "base", goal)
            size = (goal / WEIGHTS).stat().st_size / 1e6
            print(f"{task} {name}: {size:.1f} MB")


if __name__ == "__main__":
    main()
