"""Where benchmarks and tests find texts that the package doesn't ship."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "FORETOKEN_DATA"
DEFAULT = Path("..", "shared", "data")


def folder() -> Path | None:
    """The folder that FORETOKEN_DATA names, else ../shared/data; None if it doesn't exist."""
    path = Path(os.path.expanduser(os.environ.get(VARIABLE) or DEFAULT))
    return path if path.is_dir() else None
