"""The files of a measurement: what is read, and what is refused."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("missing", ["runs", "suite", "schema", "costs"])
def test_a_broken_record_is_one_sentence(tmp_path: Path, missing: str) -> None:
    """A missing key and another schema are named."""
    target = {"name": "t", "parameters": 1, "dtype": "float32", "backend": "plain"}
    suite = dict.fromkeys(record.Suite.__annotations__, 0)
    found: dict[str, Any] = {
        "schema": 1,
        "environment": {},
        "target": target,
        "suite": suite,
        "costs": None,
        "runs": metrics.runs([answer(), plain()], [], repeats=1),
    }
    path = tmp_path / "results.json"
    write_json(path, found)
    assert record.read_results(path) == found
    write_json(path, {key: value for key, value in found.items() if key != missing})
    with pytest.raises(ForetokenError, match=missing):
        record.read_results(path)
    write_json(path, {**found, "schema": 99})
    with pytest.raises(ForetokenError, match="schema 99"):
        record.read_results(path)
