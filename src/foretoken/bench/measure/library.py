"""Libraries of the `bench` extra, imported where they are used."""

from __future__ import annotations

from typing import Any

from foretoken.errors.extras import imported


def library(module: str) -> Any:
    """An imported module; a `ForetokenError` that says what to install where it is missing."""
    return imported(module, "bench", "Measuring needs")
