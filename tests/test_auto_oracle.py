"""The oracle of `auto`: its prompts were not learned from, pieces go on, and what lacks fails."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import auto_oracle
from auto_oracle import AUTO, BASELINE, CELLS
from real_table import prompts as real

from foretoken.bench.suites.suite import Prompt, Suite

FOUND = Suite(
    "spec-bench",
    "",
    tuple(Prompt(f"{t}{i}", t, (f"{t} {i}",)) for t in "abcdef" for i in range(80)),
)


@pytest.fixture(autouse=True)
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "official", lambda: FOUND)


@pytest.mark.parametrize("cell", CELLS)
def test_no_prompt_was_learned_from(cell: str) -> None:
    size = int(cell.split("/")[1])
    groups = auto_oracle.prompts_of(cell, auto_oracle.BATCHES)
    assert groups and all(len(group) == size for group in groups)
    asked = [p.turns[0] for group in groups for p in group]
    assert len(set(asked)) == len(asked)
    screened = {p.turns[0] for p in real.of_stage("screen", FOUND)}
    assert len(screened) == 24 and not screened.intersection(asked)
    if cell.endswith("tasks") and not cell.startswith("mini"):
        assert len({p.task for group in groups for p in group}) == 6 and len(groups) == 24
    else:
        assert len(groups) * size >= 24


def logs(auto: float, best: float, batches: int) -> dict[str, list[float]]:
    return {
        BASELINE: [0.0] * batches,
        "suffix-4": [-math.log(best)] * batches,
        AUTO: [-math.log(auto)] * batches,
    }


def cells(**other: Any) -> dict[str, Any]:
    """All as wanted, but for one cell's numbers."""
    good = {cell: auto_oracle.result(logs(1.0, 1.0, 24), 24) for cell in CELLS}
    return {**good, **{key.replace("__", "/"): own for key, own in other.items()}}


def test_what_is_wanted_of_each_cell() -> None:
    assert not auto_oracle.missed(cells())
    for cell, auto, best, batches in (
        ("smollm2-135m/1/0/tasks", 1.0, 1.06, 24),
        ("smollm2-135m/1/0/tasks", 0.985, 0.9, 24),
        ("smollm2-135m/4/0/wrong", 0.97, 0.9, 24),
        ("mini/4/1/tasks", 0.96, 0.9, 24),
        ("mini/4/1/tasks", 1.0, 0.9, 23),
    ):
        whole = {**cells(), cell: auto_oracle.result(logs(auto, best, batches), 24)}
        [told] = auto_oracle.missed(whole)
        assert cell in told
        del whole[cell]
        assert auto_oracle.missed(whole) == [f"{cell} is not measured"]


def test_it_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    turns: list[int] = []

    class Lineup:
        def __init__(self, *_: Any) -> None:
            return

        def seconds(self, group: Any, turn: int, tokens: int) -> dict[str, float]:
            turns.append(turn)
            if len(turns) == 3:
                raise KeyboardInterrupt
            return {BASELINE: 2.0, "pld-2": 1.5, AUTO: 1.0}

    monkeypatch.setattr(auto_oracle, "Lineup", Lineup)
    monkeypatch.setitem(auto_oracle.ROUNDS, auto_oracle.SMALL, 2)
    given = Namespace(
        batches=2, models=tmp_path, max_tokens=8, out=tmp_path, model="mini", draft_model="x"
    )
    with pytest.raises(KeyboardInterrupt):
        auto_oracle.measure(CELLS[0], {}, given, math.inf)
    kept = json.loads((tmp_path / "auto_oracle.json").read_text())["cells"]
    assert kept[CELLS[0]]["batches"] == 2
    auto_oracle.measure(CELLS[0], kept, given, math.inf)
    auto_oracle.measure(CELLS[0], kept, given, math.inf)
    auto_oracle.measure(CELLS[1], kept, given, -math.inf)
    assert turns == [0, 1, 2, 2, 3] and list(kept) == [CELLS[0]]
    assert kept[CELLS[0]]["of_plain"] == pytest.approx(2.0)
