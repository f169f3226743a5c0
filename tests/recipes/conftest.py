"""The recipe's scripts can be imported in these tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def recipe() -> Path:
    """The folder of the recipe that is tested."""
    return RECIPES / "zoo"


@pytest.fixture(autouse=True)
def importable(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recipe's files are scripts in one folder, not a package."""
    monkeypatch.syspath_prepend(str(recipe))
    ours = {p.stem for p in recipe.glob("*.py")}
    for name in ours:  # tests/train may have been imported as "train"
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ours & set(sys.modules):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(recipe)):
            del sys.modules[name]
