"""Which answers of samples.jsonl a report shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import synthetic
from foretoken import ForetokenError
from foretoken.bench.record import Answer
from foretoken.bench.report.samples import each_answer, example, samples, shown


def test_samples_prefer_prompts_that_do_not_loop() -> None:
    """One prompt a task: the first that counts, or the first of all where none does."""
    record = synthetic.results(sizes=(1,))
    record["suite"]["left_out"] = ["a-1", "b-1"]
    answers = [
        synthetic.answer(method, task, id=f"{task}-{number}")
        for task, numbers in (("a", (1, 2, 3)), ("b", (1,)))
        for number in numbers
        for method in ("autoregressive", "pld", "sps")
    ]
    found = samples(record, iter(answers))
    assert [(s.first.id, [a.method for a in s.answers]) for s in found] == [
        ("a-2", ["sps", "pld"]),  # the fastest first
        ("b-1", ["sps", "pld"]),
    ]
    seen = example(record, answers, "pld")
    assert seen is not None and (seen.id, seen.method) == ("a-2", "pld")


def test_samples_are_of_one_target_and_of_first_turns() -> None:
    """At the smallest batch size; failures are listed apart."""
    record = synthetic.results("bfloat16")
    answers = [
        synthetic.answer("pld", "a", dtype="float32"),
        synthetic.answer("pld", "a", dtype="bfloat16", turn=1),
        synthetic.answer("pld", "a", dtype="bfloat16", batch_size=4),
        synthetic.answer("pld", "a", dtype="bfloat16", id="the-one"),
    ]
    assert [s.first.id for s in samples(record, answers)] == ["the-one"]
    [found] = shown([record], [synthetic.answer("pld", "a", dtype="bfloat16", error="gone")])
    assert not found.samples and [a.error for a in found.failures] == ["gone"]


def test_samples_are_read_line_by_line(tmp_path: Path) -> None:
    """Empty lines are skipped, and a missing file has no answers."""
    path = tmp_path / "samples.jsonl"
    path.write_text(synthetic.answer("pld", "a").line() + "\n\n")
    [found] = each_answer(path)
    assert isinstance(found, Answer)
    assert list(each_answer(tmp_path / "missing.jsonl")) == []


def test_a_torn_last_line_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that goes on, or was killed, leaves one; the log says so. A whole one counts."""
    path = tmp_path / "samples.jsonl"
    line = synthetic.answer("pld", "a").line()
    path.write_text(f"{line}\n{line[:-9]}")
    assert len(list(each_answer(path))) == 1
    assert "line 2 is torn" in caplog.text
    path.write_text(f"{line}\n{line}")
    assert len(list(each_answer(path))) == 2


@pytest.mark.parametrize("line", [b"\xff", b"{", b"5", b'{"seconds": 5}'])
def test_a_damaged_line(tmp_path: Path, line: bytes) -> None:
    """The file and the line's number."""
    path = tmp_path / "samples.jsonl"
    good = synthetic.answer("pld", "a", id="a-1").line().encode()
    path.write_bytes(good + b"\n\n" + line + b"\n")
    with pytest.raises(ForetokenError, match=r"samples\.jsonl, line 3 is damaged: .*; delete the"):
        list(each_answer(path))


def test_not_all_failures_are_shown() -> None:
    record = synthetic.results()
    failed = [synthetic.answer("pld", "a", id=str(i), error="gone") for i in range(30)]
    [found] = shown([record], failed)
    assert [a.id for a in found.failures] == [str(i) for i in range(20)]


def test_the_answer_in_a_terminal_is_greedy_and_of_some_length() -> None:
    """A drawn one is no other program's, and of a few tokens there is nothing to see."""
    record = synthetic.results(sizes=(1,))
    hot = synthetic.answer("pld", "a", 1.0)
    few = synthetic.answer("pld", "b", pieces=["a"] * 4, accepted=[True] * 4, token_ids=[1] * 4)
    good = synthetic.answer("pld", "c")
    assert example(record, [hot, few], "pld") is None
    assert example(record, [hot, few, good], "pld") is good
