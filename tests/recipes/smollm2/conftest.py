"""The recipe of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def recipe() -> Path:
    return Path(__file__).parents[3] / "recipes" / "smollm2"
