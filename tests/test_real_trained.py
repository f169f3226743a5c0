"""benchmarks/real_table/trained.py: which rows there are, what is asked of them, the page's table.

The target and its draft model are the tests' tiny ones, under the names that the zoo would have.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken.bench.suites.suite import Prompt, Suite

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]

import real  # noqa: E402
from real_table import (  # noqa: E402
    archive,
    cells,
    ideals,
    lineup,
    prompts,
    record,
    serve,
    stages,
    trained,
)
from real_table.progress import OPENED, Whole  # noqa: E402

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
SUITE = Suite(
    "spec-bench",
    "0" * 64,
    tuple(
        Prompt(f"{task}-{i}", task, (f"Question {i} of {task}.", "And then?"))
        for task in TASKS
        for i in range(80)
    ),
)
CARD = "| estimated | 2.000 | 0.9 |\n| served | 2.050 | 0.9 |\n"


@pytest.fixture
def bench(
    tmp_path: Path, checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """The stage on the tiny target with its draft model alone: `whole`, `bench`, `zoo`."""
    monkeypatch.setitem(lineup.TARGETS, lineup.SMALL, lineup.Target(str(checkpoints[0])))
    few = {name: {"method": name} for name in ("autoregressive", "suffix", "auto")}
    for module in (cells, serve):
        monkeypatch.setattr(module, "methods", lambda target: few)
    monkeypatch.setattr(cells, "TOKENS", {"screen": 6, cells.OF_TRAINED: 8})
    monkeypatch.setattr(ideals, "OFF", float("inf"))  # as passes of so small a model vary
    zoo, work = tmp_path / "zoo", tmp_path / "work"
    work.mkdir()
    shutil.copytree(checkpoints[1], zoo / "smollm2-draft")
    (zoo / "smollm2-draft" / "README.md").write_text(CARD)
    whole = Whole(work, (lineup.SMALL,), (), SUITE, 20.0, limit=2)
    return SimpleNamespace(whole=whole, bench=serve.Bench(tmp_path, work, 1, None, zoo), zoo=zoo)


def test_sixty_questions_and_half_of_them() -> None:
    """Ten and five of each task, evenly spread, first turns, and none of our own."""
    asked = prompts.of_stage(cells.OF_TRAINED, SUITE)
    assert Counter(p.task for p in asked) == dict.fromkeys(TASKS, 10)
    assert {len(p.turns) for p in asked} == {1}
    half = prompts.of_stage(cells.OF_TRAINED, SUITE, half=True)
    assert {p.id for p in half if p.task == "qa"} == {f"qa-{i}" for i in range(0, 80, 16)}
    assert len(half) == 30 and {p.id for p in half} < {p.id for p in asked}


def test_the_stage_becomes_a_record_and_a_table(bench: SimpleNamespace) -> None:
    """Rows of drafters that are there, at both temperatures; the others are named."""
    trained.settle(bench.whole, bench.zoo)
    real.run(bench.whole, bench.bench, [cells.OF_TRAINED])
    made = record.made(bench.whole, Path(), {}, 0.0)
    greedy, sampled = made["cells"]
    rows = ["autoregressive", "suffix", "auto", "draft-2", "draft-4", "draft-4-int8", "auto+draft"]
    assert [row["method"] for row in greedy["rows"]] == rows
    assert [row["method"] for row in sampled["rows"]] == rows
    assert (greedy["temperature"], sampled["temperature"]) == (0.0, 1.0)
    assert all(row["identity"]["different"] == 0 for row in greedy["rows"])
    assert all(row["ideal"] > 0 for row in greedy["rows"] if row["method"].startswith("draft"))
    assert greedy["rows"][3]["config"] == lineup.TRAINED["draft-2"]
    assert greedy["not_run"] == {} and greedy["max_tokens"] == 8
    best = greedy["best_trained"]
    assert best["method"] in lineup.TRAINED and best["over"].keys() == {*rows[:3]}
    about = made[cells.OF_TRAINED]
    assert about["drafters"].keys() == {"smollm2-draft"} and len(about["missing"]) == 6
    assert about["drafters"]["smollm2-draft"]["estimated"] == 2.0
    assert "smollm2-eagle3 is not there" in "; ".join(made["missed"])
    table = stages.trained(made)
    assert "| `draft-4` |" in table and "| `smollm2-draft` | `sps` |" in table
    assert "Not there: smollm2-eagle3" in table
    assert json.loads(json.dumps(made)) == made


def test_other_weights_are_another_cell(bench: SimpleNamespace, tmp_path: Path) -> None:
    """The answers of the earlier ones stay in the working folder, and leave the archive."""
    trained.settle(bench.whole, bench.zoo)
    first = bench.whole.cells()[1]
    trained.settle(bench.whole, bench.zoo)
    assert bench.whole.cells()[1] == first
    bench.bench.folder(first).mkdir()
    (bench.bench.folder(first) / "cell.json").write_text("{}")
    archive.pack(bench.bench.work, tmp_path / "kept")
    assert (tmp_path / "kept" / f"{first.name}.tar.xz").is_file()
    (bench.zoo / "smollm2-draft" / "config.json").write_text("{}")
    trained.settle(bench.whole, bench.zoo)
    assert bench.whole.cells()[1].name != first.name
    archive.pack(bench.bench.work, tmp_path / "kept")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {OPENED}
    assert bench.bench.folder(first).is_dir()


def test_without_a_drafter_nothing_is_measured(
    bench: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, what was settled before stays, and the record and the page say that too."""
    trained.settle(bench.whole, bench.zoo / "nowhere")
    assert "no drafter that was trained" in capsys.readouterr().out
    assert bench.whole.trained()["cells"] == []
    assert [c.stage for c in bench.whole.cells()] == ["screen"]
    made = record.made(bench.whole, Path(), {}, 0.0)
    assert not any("trained" in text for text in made["missed"])
    assert stages.trained(made) == stages.NOT_MEASURED
    trained.settle(bench.whole, bench.zoo)
    before = bench.whole.trained()
    trained.settle(bench.whole, bench.zoo / "nowhere")
    assert bench.whole.trained() == before != {}


def over(ratio: float, low: float, high: float) -> dict[str, Any]:
    return {"ratio": ratio, "ci95": [low, high]}


def test_those_that_could_be_the_best() -> None:
    """The fastest and whatever has an interval that overlaps with its own; not plain decoding."""
    rows = [
        {"method": "autoregressive", "over_plain": over(1.0, 1.0, 1.0)},
        {"method": "pld", "over_plain": over(1.1, 0.9, 1.3)},
        {"method": "suffix", "over_plain": over(1.4, 1.25, 1.6)},
        {"method": "swift", "over_plain": over(0.3, 0.2, 0.4)},
        {"method": "rest", "over_plain": None},
    ]
    assert trained.could_be_best(rows) == ["pld", "suffix"]


def asked(
    lengths: dict[str, float], estimated: float | None = 2.0, **beside: dict[str, Any]
) -> list[str]:
    rows = [{"method": m, "mean_acceptance_length": length} for m, length in lengths.items()]
    best = {"method": "medusa", "over": beside}
    cell = {"stage": cells.OF_TRAINED, "temperature": 0.0, "rows": rows, "best_trained": best}
    facts = {"smollm2-medusa": {"bytes": 1, "estimated": estimated, "served": 2.05}}
    about = {"drafters": facts, "missing": []}
    return list(trained.missed({cells.OF_TRAINED: about, "cells": [cell]}))


def test_what_is_asked_of_trained_drafters() -> None:
    """Tokens a pass, the estimate, and a speed over plain and over each untrained method."""
    good = {"autoregressive": over(1.9, 1.8, 2.0), "suffix": over(1.2, 1.1, 1.3)}
    assert asked({"medusa-paper": 2.1, "eagle3-paper": 2.8}, **good) == []
    [text] = asked({"medusa-paper": 1.94}, **good)
    assert text == "medusa-paper: 1.94 tokens a pass, and 2.0 are wanted"
    assert "differ by 12.2%" in asked({}, 1.8, **good)[0]
    assert "no card" in asked({}, None, **good)[0]
    [text] = asked({}, **{**good, "suffix": over(1.05, 0.98, 1.1)})
    assert "not surely faster than suffix: 0.98 to 1.10" in text
    [text] = asked({}, **{**good, "autoregressive": over(1.5, 1.4, 1.6)})
    assert "1.50 times plain, not 1.8" in text
