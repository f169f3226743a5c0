"""The file of prompts for `foretoken train`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_a_work_folder_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is made; prompts come with their answers, of the tasks that are asked for."""
    import prompts

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    records = [{"task": task, "messages": turns} for task in ("qa", "math", "code")]
    monkeypatch.setattr(prompts, "records_by_source", lambda folder, split: {"one": records})
    out = tmp_path / "new" / "work" / "prompts.jsonl"
    given = ["--data", str(tmp_path), "--tasks", "math", "qa", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["prompts.py", *given])
    prompts.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [{"task": task, "messages": turns} for task in ("math", "qa")]
