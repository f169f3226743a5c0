"""The files of a measurement: what is read, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.bench import record
from foretoken.bench.measure import metrics
from foretoken.bench.record import Answer
from foretoken.files import write_json
from measured_answers import answer, plain


def test_prefill_is_timed_apart() -> None:
    """It is no part of the decoding time."""
    slow_prompt = {**answer().seconds, "prefill": 9.0}
    assert answer(seconds=slow_prompt).decoding == answer().decoding


def test_an_old_line_still_parses() -> None:
    """A line without the fields that came later, and with one that went."""
    found = json.loads(plain().line())
    for name in ("batch_size", "group", "decodings", "engine_steps", "category", "error"):
        del found[name]
    old = Answer.parse(json.dumps({**found, "gone": 1}))
    assert (old.batch_size, old.group, old.category, old.error) == (1, "a-1", "a", None)
    assert old.decodings == [old.decoding] and old.engine_steps == old.passes


def test_lines_are_told_apart() -> None:
    """By each setting, and by each turn of a prompt."""
    other = {"target": "u", "dtype": "float16", "method": "x", "temperature": 0.5}
    other |= {"batch_size": 9, "id": "b-1", "turn": 1}
    keys = {answer(**{name: value}).key for name, value in other.items()}
    assert len(keys | {answer().key}) == len(other) + 1


def whole() -> dict[str, Any]:
    """A small results.json."""
    target = {"name": "t", "parameters": 1, "dtype": "float32", "backend": "plain"}
    numbers = {"prompts": 1, "turns": 1, "max_tokens": 8, "distinct_4_threshold": 0.2}
    suite = {"name": "s", "sha256": "0", "left_out": [], "skipped": ["a"], "history": "own"}
    return {
        "schema": 1,
        "environment": {},
        "target": target,
        "suite": {**suite, **numbers, "warm": False},
        "costs": None,
        "runs": metrics.runs([answer(), plain()], [], repeats=1),
    }


@pytest.mark.parametrize("missing", ["runs", "suite", "schema", "costs"])
def test_a_broken_record_is_one_sentence(tmp_path: Path, missing: str) -> None:
    """A missing key and another schema are named."""
    found = whole()
    path = tmp_path / "results.json"
    write_json(path, found)
    assert record.read_results(path) == found
    write_json(path, {key: value for key, value in found.items() if key != missing})
    with pytest.raises(ForetokenError, match=missing):
        record.read_results(path)
    write_json(path, {**found, "schema": 99})
    with pytest.raises(ForetokenError, match="schema 99"):
        record.read_results(path)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (["runs"], 5, "results.json: runs is 5; it must be a list."),
        (["runs", 0], None, "results.json: runs[0] is not an object."),
        (["runs", 0, "tokens"], "four", "runs[0]: tokens is 'four'; it must be a whole number."),
        (["runs", 0, "speedup"], [1], "speedup is [1]; it must be a number or None."),
        (["runs", 0, "acceptance_rate_per_position"], [[0.5]], "_per_position[0] is [0.5]"),
        (["runs", 0, "by_task", "a", "ms_per_step"], {"1": "x"}, "ms_per_step['1'] is 'x'"),
        (["runs", 0, "ideal"], 3, "runs[0]: ideal is not an object."),
        (["suite", "skipped"], "a", "suite: skipped is 'a'; it must be a list."),
    ],
    ids=lambda given: str(given)[:30],
)
def test_values_of_another_type(where: list[Any], value: Any, said: str) -> None:
    """They are named by their place; what is read of the record later can't stumble over them."""
    found: Any = whole()
    record.check(found, "results.json")
    *path, last = where
    inner = found
    for key in path:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(ForetokenError, match=re.escape(said)):
        record.check(found, "results.json")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"5", "it is no JSON object"),
        (b"{}", "it lacks target, method, temperature"),
        (b'{"seconds": 5}', "seconds is 5; it must be a dict"),
        (b'{"token_ids": [1, "a"]}', "token_ids[1] is 'a'; it must be a whole number"),
        (b'{"margin": NaN}', "margin is nan; it must be a number or None"),
    ],
    ids=["no UTF-8", "nested", "a number", "empty", "no mapping", "no id", "NaN"],
)
def test_lines_that_hold_no_answer(line: bytes, said: str) -> None:
    """Each is one clause, which the file and the line's number are put before."""
    with pytest.raises(ForetokenError, match=re.escape(said)):
        Answer.parse(line)


def test_an_answer_without_all_its_times() -> None:
    """The decoding time is made of them."""
    found = json.loads(plain().line())
    del found["seconds"]["verify"], found["decodings"]
    with pytest.raises(ForetokenError, match="its seconds lack 'verify'"):
        Answer.parse(json.dumps(found))
