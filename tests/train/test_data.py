"""Prompts are read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.train.data import read_conversations


def test_bad_prompts(tmp_path: Path) -> None:
    """The message names the line, or that the file holds no JSON objects."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"turns": ["a"]}\n{"question": "b"}\n')
    with pytest.raises(ForetokenError, match="line 2 has neither"):
        read_conversations(path)
    path.write_text("no json\n")
    with pytest.raises(ForetokenError, match="line 1: not JSON"):
        read_conversations(path)
