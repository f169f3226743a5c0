"""Recipes are read from files and checked."""

from __future__ import annotations

import pytest

from foretoken import ForetokenError
from foretoken.train.recipe import Recipe, read_recipe, recipes


def test_every_recipe_can_be_read() -> None:
    """Each names objectives that exist; numbers may be written as YAML doesn't read them."""
    assert {"medusa", "hydra", "blockwise"} <= set(recipes())
    for name in recipes():
        assert read_recipe(name).goal.weights
    assert read_recipe("medusa", {"lr": "5e-4"}).lr == 5e-4  # what YAML makes of --set lr=5e-4


def test_settings_that_are_not_there() -> None:
    """Unknown names get a suggestion, impossible numbers a reason."""
    with pytest.raises(ForetokenError, match="Did you mean 'steps'"):
        read_recipe("medusa", {"step": 3})
    with pytest.raises(ForetokenError, match="Did you mean 'medusa'"):
        read_recipe("medusas")
    with pytest.raises(ForetokenError, match="Did you mean 'epochs'"):
        Recipe(order="epoch")
    with pytest.raises(ForetokenError, match="constant, cosine, linear"):
        Recipe(schedule="step")
    with pytest.raises(ForetokenError, match="a row must hold a prompt"):
        Recipe(max_tokens=512, length=512)
