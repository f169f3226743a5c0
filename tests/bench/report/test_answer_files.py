"""A run's answers as Spec-Bench's scripts read them: by its formulas they give what we record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarked import SUITE, Pair, plan
from foretoken import ForetokenError
from foretoken.bench.measure import costs
from foretoken.bench.record import Results
from foretoken.bench.report.answer_files import step_lengths, write_spec_bench
from foretoken.bench.run.resume import Samples
from foretoken.bench.run.runner import Runner
from foretoken.bench.run.session import measure
from measured_answers import answer, plain

Lines = list[dict[str, Any]]
Measured = tuple[Path, Results]


@pytest.fixture(scope="module")
def measured(checkpoints: Pair, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Greedy and not, alone and in pairs."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:  # costs of passes have tests of their own
        patch.setattr(costs, "_ARRAY_BYTES", 2**16)
        patch.setattr(costs, "WIDTHS", (1, 2))
        runner = Runner(plan(checkpoints, batch_sizes=(1, 2)))
        return folder, measure(runner, SUITE, SUITE.prompts, Samples(folder))


def questions(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def speed(lines: Lines, task: str | None, tokens: Callable[[Mapping[str, Any]], int]) -> float:
    """Spec-Bench's tokens a second: the mean over questions of tokens ÷ seconds of all turns."""
    rates = [
        tokens(line["choices"][0]) / sum(line["choices"][0]["wall_time"])
        for line in lines
        if task in (None, line["category"])
    ]
    return sum(rates) / len(rates)


def accepted(lines: Lines, task: str | None) -> float:
    """Its mean accepted tokens: over the steps of all questions together."""
    chosen = [line["choices"][0] for line in lines if task in (None, line["category"])]
    steps = [length for choice in chosen for length in choice["accept_lengths"]]
    return sum(steps) / len(steps)


def counted(choice: Mapping[str, Any]) -> int:
    """Tokens by the method's own count."""
    return sum(choice["new_tokens"])


def test_its_formulas_give_our_columns(measured: Measured, tmp_path: Path) -> None:
    """Of every method and setting, over all questions and of each task, also those that loop."""
    folder, results = measured
    assert results["suite"]["left_out"]  # or it wouldn't be seen that they count
    files = {file.path.name: file for file in write_spec_bench(folder, tmp_path)}
    assert {*files} == {path.name for path in tmp_path.iterdir()}
    assert len(files) == len(results["runs"]) == 3 * 2 * 2
    for run in results["runs"]:
        end = f"float32-temp-{run['temperature']}"
        end += "" if run["batch_size"] == 1 else f"-batch-{run['batch_size']}"
        name = "vanilla" if run["method"] == "autoregressive" else run["method"]
        lines = questions(files[f"tiny-{name}-{end}.jsonl"].path)
        base = questions(files[f"tiny-vanilla-{end}.jsonl"].path)
        assert [line["question_id"] for line in lines] == sorted(p.id for p in SUITE.prompts)
        for task in (None, "chat", "qa"):
            said = (run if task is None else run["by_task"][task])["spec_bench"]
            rate = speed(lines, task, counted)
            assert said["tokens_per_second"] == pytest.approx(rate)
            assert said["speedup"] == pytest.approx(rate / speed(base, task, counted))
            assert said["mean_accepted_tokens"] == pytest.approx(accepted(lines, task))
        for line in lines:
            [choice] = line["choices"]
            assert sum(choice["accept_lengths"]) == counted(choice)
            assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
            turns = next(p for p in SUITE.prompts if p.id == line["question_id"]).turns
            lists = ("turns", "decoding_steps", "new_tokens", "wall_time")
            assert {len(choice[name]) for name in lists} == {len(turns)}


def test_a_line(tmp_path: Path) -> None:
    """Numbers as ids in their order, turns in theirs, texts without the space around them."""
    answers = [
        answer(id="9", turn=1, text=" later\n", category="math"),
        answer(id="9", turn=0, category="math", token_ids=[1, 2, 3], accepted=[False, True, True]),
        answer(id="10", error="NaN"),
        answer(id="81", category="qa"),
        plain(id="81", category="qa"),
    ]
    (tmp_path / "samples.jsonl").write_text("".join(a.line() + "\n" for a in answers))
    mine, base = write_spec_bench(tmp_path, tmp_path / "out")
    assert (mine.questions, mine.failed, base.questions, base.failed) == (2, 1, 1, 0)
    assert base.path.name == "t-vanilla-float32-temp-0.0.jsonl"
    first, second = questions(mine.path)
    assert (first["question_id"], second["question_id"]) == (9, 81)
    assert (first["category"], first["model_id"]) == ("math", "t-pld-float32-temp-0.0")
    assert first["choices"] == [
        {
            "index": 0,
            "turns": ["w x y z", "later"],
            "decoding_steps": [2, 2],
            "new_tokens": [3, 4],
            "wall_time": [0.12, 0.12],
            "accept_lengths": [1, 2, 3, 1],
        }
    ]
    assert first["answer_id"] != second["answer_id"]


@pytest.mark.parametrize(
    ("accepted", "passes", "lengths"),
    [
        ([True, True, False, False, False], 3, [3, 1, 1]),
        ([False, True, False, True], 3, [1, 2, 1]),  # the last step was cut by a stop
        ([False], 2, [1, 0]),  # of the last step a stop left nothing
        ([], 1, [0]),
    ],
)
def test_what_each_step_wrote(accepted: list[bool], passes: int, lengths: list[int]) -> None:
    """Accepted tokens and the target's own; as many entries as steps."""
    assert step_lengths(answer(accepted=accepted, passes=passes)) == lengths


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A server's answers, a folder without any, and two methods of one name."""
    with pytest.raises(ForetokenError, match="don't tell what each step wrote"):
        step_lengths(answer(counted=4))
    with pytest.raises(ForetokenError, match="has no answers"):
        (tmp_path / "samples.jsonl").touch()
        write_spec_bench(tmp_path, tmp_path)
    odd = [answer(method="pld|sps"), answer(method="pld:sps")]
    (tmp_path / "samples.jsonl").write_text("".join(a.line() + "\n" for a in odd))
    with pytest.raises(ForetokenError, match=r"pld:sps-float32-temp-0\.0 and another method"):
        write_spec_bench(tmp_path, tmp_path)
