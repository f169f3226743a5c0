"""Where benchmarks and tests find texts that the package doesn't ship."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "FORETOKEN_DATA"
DEFAULT = Path("..", "shared", "data")


def folder() -> Path | None:
    """The folder that FORETOKEN_DATA names, else ../shared/data; None where there is neither."""
    found = Path(os.environ.get(VARIABLE) or DEFAULT)
    return found if found.is_dir() else None
