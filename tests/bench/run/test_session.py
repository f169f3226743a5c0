"""A whole measurement: which prompts are served, in which order, until when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarked import SUITE, Pair, plan
from foretoken import ForetokenError
from foretoken.bench.plan import Plan, Unit
from foretoken.bench.record import BASELINE, Answer, read_results
from foretoken.bench.run import session
from foretoken.bench.run.resume import Samples
from foretoken.bench.run.runner import Runner
from foretoken.bench.run.session import measure
from foretoken.bench.suites.suite import Prompt, Suite
from foretoken.files import write_json
from whole_run import RUN_SUITE


def test_prompts_without_room_are_skipped_and_counted(checkpoints: Pair, tmp_path: Path) -> None:
    """Never cut: 4096 tokens of context, of which 256 must be left after the last turn; the first
    turn's answer counts with all that it may have."""
    runner = Runner(plan(checkpoints, methods={}, temperatures=(0.0,), max_tokens=8))
    empty = len(runner.input_ids(Prompt("e", "qa", ("",)), []))
    fits = Prompt("fits", "qa", ("x" * (4096 - 256 - empty),))
    long = Prompt("long", "qa", ("x" * (4096 - 256 - empty + 1),))
    turns = len(runner.input_ids(Prompt("t", "qa", ("", "")), [""]))
    edge = Prompt("edge", "qa", ("x" * (4096 - 256 - turns - 8), ""))
    over = Prompt("over", "qa", ("x" * (4096 - 256 - turns - 7), ""))
    kept, skipped = runner.fitting([fits, long, edge, over])
    assert [p.id for p in kept] == ["fits", "edge"] and skipped == ["long", "over"]
    suite = Suite("s", "0" * 64, (long, SUITE.prompts[1]))
    results = measure(runner, suite, suite.prompts, Samples(tmp_path))
    assert results["suite"]["skipped"] == ["long"] and results["suite"]["prompts"] == 1
    with pytest.raises(ForetokenError, match="256 tokens"):
        measure(runner, suite, [long], Samples(tmp_path))


def test_a_small_measurement(checkpoints: Pair, tmp_path: Path) -> None:
    """Every run is there, the file keeps the contract, and the order is that of the plan."""
    runner = Runner(plan(checkpoints, batch_sizes=(1, 2)))
    found = measure(runner, SUITE, SUITE.prompts, Samples(tmp_path))
    write_json(tmp_path / "results.json", found)
    assert read_results(tmp_path / "results.json") == found
    keys = [(run["batch_size"], run["temperature"], run["method"]) for run in found["runs"]]
    names = [BASELINE, "pld", "sps"]
    assert keys == [(b, t, n) for b in (1, 2) for t in (0.0, 1.0) for n in names]
    assert found["suite"]["prompts"] == 5 and found["suite"]["turns"] == 7
    assert found["suite"]["history"] == "autoregressive" and not found["suite"]["warm"]
    assert found["costs"] is not None and set(found["costs"]["drafts"]) == {"pld", "sps"}
    for run in found["runs"]:
        assert run["failed"] == 0
        if run["method"] == BASELINE and run["tokens"]:
            assert run["speedup"] == 1 and run["mean_acceptance_length"] == 1
            assert run["draft_acceptance_rate"] is None


def test_it_is_warmed_up_first(
    checkpoints: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and with the first prompt that is served."""
    runner, done = Runner(plan(checkpoints, methods={})), list[str]()
    serve, warm_up = runner.serve, runner.warm_up

    def noted(unit: Unit) -> list[Answer]:
        done.append("served")
        return serve(unit)

    def noted_first(prompt: Prompt) -> None:
        done.append(prompt.id)
        warm_up(prompt)

    monkeypatch.setattr(runner, "serve", noted)
    monkeypatch.setattr(runner, "warm_up", noted_first)
    measure(runner, SUITE, SUITE.prompts[:2], Samples(tmp_path))
    assert done == ["chat-1", *["served"] * 4]


def test_a_budget_stops_after_a_block(checkpoints: Pair, tmp_path: Path) -> None:
    """The first is always served, and whole: at both temperatures."""
    runner = Runner(plan(checkpoints, methods={}))
    samples = Samples(tmp_path)
    found = measure(runner, SUITE, SUITE.prompts, samples, until=0.0)
    assert {a.id for a in samples.answers} == {"chat-1"} and found["suite"]["prompts"] == 1
    assert {a.temperature for a in samples.answers} == {0.0, 1.0}


def test_a_warm_run_is_not_resumed(checkpoints: Pair, tmp_path: Path) -> None:
    """What its drafters had learned is lost."""
    plan = Plan(
        model=checkpoints[0], name="tiny", methods={}, max_tokens=4, temperatures=(0.0,), warm=True
    )
    runner = Runner(plan)
    runner.meter = lambda: None  # type: ignore[method-assign, assignment, return-value]
    measure(runner, RUN_SUITE, RUN_SUITE.prompts[:2], Samples(tmp_path))
    with pytest.raises(ForetokenError, match="can't be resumed"):
        measure(runner, RUN_SUITE, RUN_SUITE.prompts[:3], Samples(tmp_path))


def served_in_time(
    monkeypatch: pytest.MonkeyPatch, blocks: list[float], until: float | None
) -> tuple[list[float], list[int]]:
    """The blocks of one unit that were served, each of which takes so many seconds; and before how
    many of them costs were measured."""
    now, done, rounds = 0.0, list[float](), list[int]()

    def serve(seconds: float) -> list[Answer]:
        nonlocal now
        now += seconds
        done.append(seconds)
        return []

    meter = SimpleNamespace(round=lambda: rounds.append(len(done)), costs=lambda: None)
    server: Any = SimpleNamespace(meter=lambda: meter, serve=serve)
    samples: Any = SimpleNamespace(add=lambda answers: None)
    monkeypatch.setattr(session, "perf_counter", lambda: now)
    todo: Any = [[seconds] for seconds in blocks]
    session._serve(server, todo, samples, until, lambda: None)
    return done, rounds


def test_no_block_begins_that_may_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the longest one so far: what is left would suffice for the short one before it."""
    assert served_in_time(monkeypatch, [3.0, 1.0, 1.0], 6.5)[0] == [3.0, 1.0]
    assert served_in_time(monkeypatch, [3.0, 1.0, 1.0], 7.0)[0] == [3.0, 1.0, 1.0]


def test_costs_are_measured_all_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six times, evenly; what the time didn't suffice for comes at the end."""
    assert served_in_time(monkeypatch, [1.0] * 12, None)[1] == [0, 2, 4, 6, 8, 10]
    assert served_in_time(monkeypatch, [1.0] * 12, 2.5)[1] == [0, 2, 2, 2, 2, 2]
