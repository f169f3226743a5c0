"""Inputs that a library should refuse or survive, in families, and what is asked of each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

FAMILIES = {
    "prompts": 200,
    "params": 260,
    "methods": 260,
    "drafters": 60,
    "keywords": 120,
    "checkpoints": 160,
    "files": 140,
    "threads": 50,
    "commands": 110,
    "clumsy": 156,
    "foreign": 170,
}
"""The families and how many cases each has: files of this folder with a function `cases`."""


def family(name: str) -> Any:
    """The module of a family."""
    return import_module(f"hostile_inputs.{name}")
