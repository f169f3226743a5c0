"""Packages that foretoken's extras install: imported where they are used, and one sentence where
they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from foretoken.errors import ForetokenError


def imported(module: str, extra: str, needs: str) -> Any:
    """A module of a package that this extra installs. Raises `missing` where it isn't there."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(module.partition(".")[0], extra, needs) from error


def missing(package: str, extra: str, needs: str) -> ForetokenError:
    """The error where a package isn't installed. needs: how its sentence begins, e.g. "Tuning
    needs"."""
    return ForetokenError(f"{needs} {package}; pip install 'foretoken[{extra}]'.")
