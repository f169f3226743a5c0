"""`foretoken demo`: from nothing to a report."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Pair, model, run
from foretoken import ForetokenError
from foretoken.bench.measure import costs
from foretoken.bench.record import Answer, read_results
from foretoken.cli import demo
from measured_answers import answer


@pytest.fixture(autouse=True)
def quick_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of passes have tests of their own."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)
    monkeypatch.setattr(costs, "WIDTHS", (1, 2))


def test_demo(checkpoints: Pair, tmp_path: Path) -> None:
    """The whole of it on two prompts a task and tiny models, without the inflated part."""
    found = run(
        "demo",
        *model(checkpoints),
        "--draft-model",
        checkpoints[1],
        "--limit",
        1,
        "--shape",
        "none",
        "--out",
        tmp_path / "demo",
    )
    assert found.exit_code == 0, found.output
    files = {p.name for p in (tmp_path / "demo").iterdir()}
    assert files == {"plan.json", "results.json", "samples.jsonl", "report.md", "report.html"}
    results = read_results(tmp_path / "demo" / "results.json")
    assert len(results["runs"]) == 8 and results["suite"]["prompts"] == 7
    assert "autoregressive" in found.stdout and "same" in found.stdout


def test_a_race_that_cant_be_shown(
    checkpoints: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all answers end early: that there is none is said."""
    monkeypatch.setattr(demo, "_middle", lambda *_: None)
    short = ("--limit", 1, "--max-tokens", 4, "--shape", "none")
    found = run("demo", *model(checkpoints), *short, "--out", tmp_path / "demo")
    assert found.exit_code == 0, found.output
    assert "There is no race to show: no answer of 4 tokens" in found.stdout


@pytest.mark.parametrize("name", ["results.json", "samples.jsonl", "plan.json", "report.md"])
def test_files_of_others_are_left_alone(name: str, checkpoints: Pair, tmp_path: Path) -> None:
    """A bench's, for one: the demo refuses the folder, and names the file."""
    (tmp_path / name).write_text('{"seed": 0}')
    found = run("demo", *model(checkpoints), "--shape", "none", "--out", tmp_path)
    assert found.exit_code == 1 and (tmp_path / name).read_text() == '{"seed": 0}'
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert name in found.stderr and "give another --out" in found.stderr


def test_a_demo_after_a_demo(tmp_path: Path) -> None:
    """Takes the place of the earlier one, also of one that was killed."""
    demo._clear(tmp_path)
    for name in ("results.json", "results-135m.json", "samples.jsonl", "report.md"):
        (tmp_path / name).write_text("{}")
    demo._clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "report.md"}


def test_a_demo_that_could_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full takes no folder away from the demos."""

    def full(*_: object) -> None:
        raise ForetokenError("full")

    demo._clear(tmp_path)
    (tmp_path / "report.md").write_text("{}")
    with monkeypatch.context() as patch, contextlib.suppress(ForetokenError):
        patch.setattr(demo, "write_json", full)
        demo._clear(tmp_path)
    demo._clear(tmp_path)


def test_a_length_without_a_draft_model(checkpoints: Pair, tmp_path: Path) -> None:
    """Nothing would be drafted by it, so it is refused; 0 isn't taken for the default."""
    out = ("--out", tmp_path / "demo", "--shape", "none", "--limit", 1, "--seconds", 0)
    found = run("demo", *model(checkpoints), "--num-speculative-tokens", 3, *out)
    assert found.exit_code == 1 and "add --draft-model" in found.stderr
    zero = ("--draft-model", checkpoints[1], "--num-speculative-tokens", 0)
    found = run("demo", *model(checkpoints), *zero, *out)
    assert found.exit_code == 1 and "num_speculative_tokens is 0" in found.stderr, found.output


def test_the_race_is_where_the_gain_is_the_middle_one() -> None:
    """Of the answers that were written to the full, both ways."""

    def one(name: str, method: str, seconds: float, **given: object) -> Answer:
        times = {**answer().seconds, "draft": 0.0, "other": 0.0, "verify": seconds}
        return answer(id=name, prompt=name, method=method, seconds=times, **given)

    gains = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}
    found = [one(name, "autoregressive", gain) for name, gain in gains.items()]
    found += [one(name, "pld", 1.0) for name in gains]
    assert demo._middle(found, "pld") == "c"
    short = [replace(a, finish_reason="stop") if a.id == "a" else a for a in found]
    assert demo._middle(short, "pld") == "d"
    assert demo._middle(found[:4], "pld") is None
    for other in ({"turn": 1}, {"temperature": 1.0}, {"error": "It broke."}):
        more = [one("c", "autoregressive", 9.0, **other), one("c", "pld", 1.0, **other)]
        assert demo._middle([*found, *more], "pld") == "c"
