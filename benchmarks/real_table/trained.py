"""The stage of trained drafters: what is measured of those that are there, and what is asked of it.

Rows are plain decoding, the methods without training that could be the best by the screen, and
those of `lineup.TRAINED` whose drafter is there, all on SmolLM2. Other drafters, or other weights
of one, are another cell: answers of the earlier ones stay where they are. Which ones a working
folder has is settled in trained.json:

    drafters    name -> {"sha256", "bytes", "estimated", "served"}: the last two as its card has
                them, of the answers that training held out
    missing     names of drafters that are not there, whose rows are left out
    cells       as in settled.json

At temperature 1 half of the questions are asked, and papers' trees are left out; with that and
answers of 96 tokens both temperatures take about 45 minutes of two cores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trained import OFF, card

from foretoken.bench.record import BASELINE
from foretoken.files import write_json
from real_table import figures
from real_table.cells import OF_TRAINED, Cell
from real_table.engines import drafter
from real_table.folder import read
from real_table.lineup import DRAFTERS, PAPERS, SMALL, TRAINED
from real_table.progress import OPENED, Whole

LENGTHS = {"eagle3-paper": 2.8, "medusa-paper": 2.0, "dflash2": 2.3, "draft-4": 2.3}
"""Wanted: tokens a pass at temperature 0."""
GOAL = 1.8
"""Wanted: the best trained drafter's speed over plain decoding."""


def settle(whole: Whole, folder: Path | None) -> None:
    """Note which drafters are there and what is measured of them. Where there is none, what was
    settled before stays."""
    places = {name: drafter(name, folder) for name in DRAFTERS}
    there = {name: _facts(place) for name, place in places.items() if place is not None}
    if SMALL not in whole.targets or not there:
        print(
            f"{OF_TRAINED}: no drafter that was trained for {SMALL} is here, so none is measured."
        )
        return
    rows = (BASELINE, *_untrained(whole), *(r for r in TRAINED if TRAINED[r]["model"] in there))
    told = json.dumps([rows, {name: facts["sha256"] for name, facts in there.items()}])
    cell = Cell(OF_TRAINED, SMALL, rows, of=hashlib.sha256(told.encode()).hexdigest()[:8])
    sampled = replace(cell, rows=tuple(r for r in rows if r not in PAPERS), temperature=1.0)
    found = {
        "drafters": there,
        "missing": [name for name in DRAFTERS if name not in there],
        "cells": [cell.to_json(), sampled.to_json()],
    }
    write_json(whole.work / OPENED, found)


def _facts(folder: Path) -> dict[str, Any]:
    """Its weights, and what its card says."""
    weights = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256()
    for path in (*weights, folder / "config.json"):
        digest.update(path.read_bytes())
    told = card(folder) if (folder / "README.md").is_file() else {}
    size = sum(path.stat().st_size for path in weights)
    return {
        "sha256": digest.hexdigest(),
        "bytes": size,
        **{part: told.get(part) for part in ("estimated", "served")},
    }


def _untrained(whole: Whole) -> list[str]:
    """Those that could be the best by the target's screen; all where it wasn't run."""
    screened = next(c for c in whole.screened() if c.target == SMALL and not c.peers)
    if not whole.done(screened):
        return [row for row in screened.rows if row != BASELINE]
    return could_be_best(figures.cell([read(whole.work / screened.name)])["rows"])


def could_be_best(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fastest, and those whose interval overlaps with its own."""
    rated = {
        row["method"]: row["over_plain"]
        for row in rows
        if row["over_plain"] and row["method"] != BASELINE
    }
    best = max(rated.values(), key=lambda over: over["ratio"])
    least = (best["ci95"] or [0.0])[0]
    return [name for name, over in rated.items() if not over["ci95"] or over["ci95"][1] >= least]


def missed(record: Mapping[str, Any]) -> Iterator[str]:
    """What is asked of trained drafters and not found, in words."""
    about = record.get(OF_TRAINED) or {"drafters": {}, "missing": []}
    if not about["drafters"]:
        return
    for name in about["missing"]:
        yield f"{name} is not there, and its rows are left out"
    for name, facts in about["drafters"].items():
        yield from _off(name, facts)
    cells = [cell for cell in record["cells"] if cell["stage"] == OF_TRAINED]
    for cell in (cell for cell in cells if cell["temperature"] == 0):
        yield from _short(cell)
        yield from _slow(cell)


def _off(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """Training's estimate and what was served of the same answers."""
    if not facts["estimated"] or not facts["served"]:
        yield f"{name} has no card that says what was estimated and served"
    elif (off := abs(facts["estimated"] / facts["served"] - 1)) > OFF:
        yield f"{name}: estimate and served differ by {off:.1%}, and {OFF:.0%} are allowed"


def _short(cell: Mapping[str, Any]) -> Iterator[str]:
    lengths = {row["method"]: row["mean_acceptance_length"] for row in cell["rows"]}
    for row, wanted in LENGTHS.items():
        if lengths.get(row) is not None and lengths[row] < wanted:
            yield f"{row}: {lengths[row]:.2f} tokens a pass, and {wanted} are wanted"


def _slow(cell: Mapping[str, Any]) -> Iterator[str]:
    """The best trained drafter beside plain decoding and every untrained method."""
    best = cell["best_trained"]
    if best is None:
        return
    name = f"the best trained row, {best['method']},"
    for other, over in best["over"].items():
        if not over["ci95"] or over["ci95"][0] <= 1:
            ends = "no interval" if not over["ci95"] else "{:.2f} to {:.2f}".format(*over["ci95"])
            yield f"{name} is not surely faster than {other}: {ends}"
    ratio = best["over"][BASELINE]["ratio"] if BASELINE in best["over"] else 0.0
    if ratio < GOAL:
        yield f"{name} is {ratio:.2f} times plain, not {GOAL}"
