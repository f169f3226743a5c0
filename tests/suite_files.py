"""Small files of prompts, and descriptions of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OWN = {"id": "a", "task": "qa", "turns": ["Who?"]}


def write(path: Path, rows: list[Any]) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def describe(path: Path, **keys: Any) -> Path:
    path.write_text(json.dumps(keys))  # every JSON text is YAML
    return path
