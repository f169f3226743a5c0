"""What the packaged suites hold, on this machine or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.bench.suites import data
from foretoken.bench.suites.listing import Listed, listing
from foretoken.bench.suites.suite import find_suite, packaged


def by_name(cache: Path) -> dict[str, Listed]:
    return {row.name: row for row in listing(cache)}


def test_what_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts as published, and the tasks that the description names; nothing is downloaded."""
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "none"))
    rows = by_name(tmp_path)
    assert [*rows] == packaged()
    there = [name for name, row in rows.items() if row.path is not None]
    assert there == ["bundled"] and rows["bundled"].source is None
    assert (rows["bundled"].prompts, len(rows["bundled"].tasks)) == (81, 7)
    spec = rows["spec-bench"]
    assert (spec.prompts, len(spec.tasks)) == (480, 6) and "hemingkx" in str(spec.source)
    assert (rows["gsm8k"].prompts, rows["gsm8k"].tasks) == (1319, ("math_reasoning",))
    speed = rows["speed-bench-qualitative"]
    assert (speed.dataset, speed.tasks, speed.source) == (True, (), "nvidia/SPEED-Bench")


@pytest.mark.skipif(data.folder() is None, reason="FORETOKEN_DATA names no folder of texts")
def test_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted; what is published is what the files have."""
    here = by_name(tmp_path)
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "none"))
    said = by_name(tmp_path)
    found = [name for name, row in here.items() if row.path is not None]
    assert "spec-bench" in found
    for name in found:
        assert said[name].prompts == here[name].prompts
        assert {*said[name].tasks} <= {*here[name].tasks}


def test_a_file_that_is_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is read."""
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    rows = [{"question": "How many?", "answer": "3"}]
    (tmp_path / "gsm8k" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ForetokenError, match="has the sha256"):
        find_suite("gsm8k", download=False)
    with pytest.raises(ForetokenError, match="has the sha256"):
        listing(tmp_path)
