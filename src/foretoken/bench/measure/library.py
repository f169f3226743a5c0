"""Libraries of the `bench` extra, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from foretoken.errors import ForetokenError


def library(module: str) -> Any:
    """An imported module; a `ForetokenError` that says what to install where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ForetokenError(
            f"Measuring needs {name}; install it with: pip install 'foretoken[bench]'"
        ) from error
