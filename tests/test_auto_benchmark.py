"""auto's benchmark: its prompts were not learned from, pieces go on, and what lacks fails."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import auto as auto_benchmark
from auto import AUTO, BASELINE, CELLS
from real_table import prompts as real

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.bench.suites.suite import Prompt, Suite

FOUND = Suite(
    "spec-bench",
    "",
    tuple(Prompt(f"{t}{i}", t, (f"{t} {i}",)) for t in "abcdef" for i in range(80)),
)


@pytest.fixture(autouse=True)
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "official", lambda: FOUND)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Fingerprints of each target's files, which need not be here."""
    found = {name: [name] for name in auto_benchmark.MODELS}
    monkeypatch.setattr(auto_benchmark, "files_of", lambda target, models: found[target])
    return found


@pytest.mark.parametrize("cell", CELLS)
def test_no_prompt_was_learned_from(cell: str) -> None:
    size = int(cell.split("/")[1])
    groups = auto_benchmark.prompts_of(cell)
    assert groups and all(len(group) == size for group in groups)
    asked = [p.turns[0] for group in groups for p in group]
    assert len(set(asked)) == len(asked)
    screened = {p.turns[0] for p in real.of_stage("screen", FOUND)}
    assert len(screened) == 24 and not screened.intersection(asked)
    if cell.endswith("tasks") and not cell.startswith("mini"):
        assert len({p.task for group in groups for p in group}) == 6
        assert len(groups) == (12 if cell.startswith("qwen") and size == 4 else 24)
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
    good = {cell: auto_benchmark.result(logs(1.0, 1.0, 24), 24, 1) for cell in CELLS}
    return {**good, **{key.replace("__", "/"): own for key, own in other.items()}}


def test_what_is_wanted_of_each_cell() -> None:
    assert not auto_benchmark.missed(cells())
    for cell, auto, best, batches in (
        ("smollm2-135m/1/0/tasks", 1.0, 1.06, 24),
        ("smollm2-135m/1/0/tasks", 0.985, 0.9, 24),
        ("smollm2-135m/4/0/wrong", 0.97, 0.9, 24),
        ("mini/4/1/tasks", 0.96, 0.9, 24),
        ("mini/4/1/tasks", 1.0, 0.9, 23),
    ):
        whole = {**cells(), cell: auto_benchmark.result(logs(auto, best, batches), 24, 1)}
        [told] = auto_benchmark.missed(whole)
        assert cell in told
        del whole[cell]
        assert auto_benchmark.missed(whole) == [f"{cell} is not measured"]


def test_a_speed_is_of_all_batches_each_the_median_of_its_rounds() -> None:
    seconds = {
        BASELINE: [1.0, 2.0, 3.0, 2.0, 1.0, 2.0],
        "pld-2": [0.5, 2.5, 0.5, 2.5, 50.0, 2.5],
        AUTO: [1.0, 1.0, 90.0, 1.0, 1.0, 1.0],
    }
    own = {key: [math.log(each) for each in row] for key, row in seconds.items()}
    found = auto_benchmark.result(own, 2, 3)
    assert found["best"] == BASELINE and found["speedup"]["pld-2"] == pytest.approx(1.0)
    assert found["of_plain"] == found["of_best"] == pytest.approx(1.5)
    low, high = found["of_plain_ci95"]
    assert 1.0 <= low < 1.5 < high <= 2.0 and found["batches"] == found["wanted"] == 6
    first = auto_benchmark.result({key: row[:1] for key, row in own.items()}, 2, 3)
    assert first["of_plain_ci95"] is None and first["batches"] == 1 and first["best"] == "pld-2"


def test_what_is_forgotten() -> None:
    """On the toy earlier answers alone; else what is known of acceptance, too."""
    llm = LLM("mini", speculative_config={"method": "auto", "remember": False})
    llm.generate(["One two three one two three"], SamplingParams(temperature=0, max_tokens=8))
    drafter: Any = llm.engine.drafter
    rates, (stored,) = drafter.control.rates[0], auto_benchmark.texts(llm)
    stored.reset()
    assert drafter.control.rates[0] is rates
    [learned] = auto_benchmark.everything(llm)
    learned.reset()
    assert drafter.control.rates[0] is not rates


@pytest.mark.usefixtures("files")
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

    monkeypatch.setattr(auto_benchmark, "Lineup", Lineup)
    monkeypatch.setitem(auto_benchmark.ROUNDS, auto_benchmark.SMALL, 2)
    monkeypatch.setattr(auto_benchmark, "BATCHES", 2)
    given = Namespace(
        batches=None, models=tmp_path, max_tokens=8, out=tmp_path, model="mini", draft_model="x"
    )
    with pytest.raises(KeyboardInterrupt):
        auto_benchmark.measure(CELLS[0], {}, given, math.inf)
    kept = json.loads((tmp_path / "auto.json").read_text())["cells"]
    assert kept[CELLS[0]]["batches"] == 2
    auto_benchmark.measure(CELLS[0], kept, given, math.inf)
    auto_benchmark.measure(CELLS[0], kept, given, math.inf)
    auto_benchmark.measure(CELLS[1], kept, given, -math.inf)
    assert turns == [0, 1, 2, 2, 3] and list(kept) == [CELLS[0]]
    assert kept[CELLS[0]]["of_plain"] == pytest.approx(2.0)
    assert kept[CELLS[0]]["files"] == [auto_benchmark.SMALL]
    pieces = kept[CELLS[0]]["environments"]
    assert len(pieces) == 2 and all({"cpu", "git_commit", "date"} <= {*each} for each in pieces)
    del kept[CELLS[0]]["environments"]  # as in older records
    kept[CELLS[0]]["log_seconds"] = {BASELINE: [0.0], "pld-2": [0.0], AUTO: [0.0]}
    auto_benchmark.measure(CELLS[0], kept, given, math.inf)
    first, second = kept[CELLS[0]]["environments"]
    assert first is None and second["cpu"]


@pytest.mark.usefixtures("files")
def test_answers_of_one_record_have_one_length(tmp_path: Path) -> None:
    """Others are refused, but where nothing is measured or nothing is kept; what doesn't tell has
    64 tokens."""
    given = asking(tmp_path)
    assert auto_benchmark.begun(given) == {}
    auto_benchmark.keep(given, by_files())
    assert list(auto_benchmark.begun(given)) == list(CELLS)
    given.max_tokens = 32
    for record in ({"max_tokens": 64}, {}):
        (tmp_path / "auto.json").write_text(json.dumps({"cells": {}, **record}))
        with pytest.raises(ForetokenError, match="have 64 tokens, and 32 are asked for"):
            auto_benchmark.begun(given)
    assert auto_benchmark.begun(Namespace(**vars(given) | {"cells": ["none"]})) == {}
    assert auto_benchmark.begun(Namespace(**vars(given) | {"fresh": True})) == {}
    auto_benchmark.keep(given, {})
    assert auto_benchmark.begun(given) == {}


def asking(out: Path) -> Namespace:
    """For all cells, beside those of a record in this folder."""
    how = {"fresh": False, "cells": list(CELLS), "max_tokens": 64, "models": out, "out": out}
    return Namespace(**how, model="mini", draft_model="x")


def by_files() -> dict[str, Any]:
    """All as wanted, by the files that are here."""
    return {cell: {**own, "files": [cell.split("/")[0]]} for cell, own in cells().items()}


def test_cells_of_a_target_are_of_the_same_files(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    """Of those that are asked for; a record that doesn't tell is refused."""
    given = asking(tmp_path)
    auto_benchmark.keep(given, by_files())
    assert list(auto_benchmark.begun(given)) == list(CELLS)
    files[auto_benchmark.PAIR] = ["of another size"]
    with pytest.raises(ForetokenError, match=r"qwen2\.5-coder-1\.5b in .* by other files than"):
        auto_benchmark.begun(given)
    given.cells = [cell for cell in CELLS if not cell.startswith("qwen")]
    assert list(auto_benchmark.begun(given)) == list(CELLS)
    auto_benchmark.keep(given, cells())
    with pytest.raises(ForetokenError, match="doesn't say by which files smollm2-135m was"):
        auto_benchmark.begun(given)
    assert auto_benchmark.begun(Namespace(**vars(given) | {"fresh": True})) == {}
    assert auto_benchmark.begun(Namespace(**vars(given) | {"cells": ["none"]}))


def test_whose_files_are_compared(tmp_path: Path) -> None:
    """The target's and its drafter's, by their contents."""
    toy = auto_benchmark.files_of(auto_benchmark.TOY, tmp_path)
    assert len(set(toy)) == 2 and toy == auto_benchmark.files_of(auto_benchmark.TOY, tmp_path)
    with pytest.raises(ForetokenError, match="There is no GGUF file"):
        auto_benchmark.files_of(auto_benchmark.SMALL, tmp_path)


@pytest.mark.usefixtures("files")
def test_a_part_of_a_cell_is_not_the_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fewer batches are measured where they are asked for, and the check says how many lack."""

    class Lineup:
        def __init__(self, *_: Any) -> None:
            return

        def seconds(self, *_: Any) -> dict[str, float]:
            return {BASELINE: 1.0, AUTO: 1.0}

    monkeypatch.setattr(auto_benchmark, "Lineup", Lineup)
    given = Namespace(
        batches=6, models=tmp_path, max_tokens=8, out=tmp_path, model="mini", draft_model="x"
    )
    measured: dict[str, Any] = {}
    auto_benchmark.measure(CELLS[0], measured, given, math.inf)
    assert f"{CELLS[0]}: 6 of 72 batches are measured" in auto_benchmark.missed(measured)
