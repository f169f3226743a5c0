"""A file of prompts of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainings import WORDS


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .jsonl file of turns, raw prompts, messages and a text."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows: list[dict[str, Any]] = [{"turns": [word, f"more of {word}"]} for word in WORDS]
    rows += [{"prompt": word} for word in WORDS]
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "what now"}]
    rows += [{"messages": talk}, {"text": "a text that stands for itself"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
