"""Recipes are read from files and checked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.train.recipe import Recipe, read_recipe, recipes
from foretoken.trainable.losses import exponential


def test_every_recipe_can_be_read() -> None:
    """Each names objectives that exist; numbers may be written as YAML doesn't read them."""
    assert {"medusa", "hydra", "blockwise"} <= set(recipes())
    for name in recipes():
        assert read_recipe(name).goal.weights
    assert read_recipe("medusa", {"lr": "5e-4"}).lr == 5e-4  # what YAML makes of --set lr=5e-4
    assert read_recipe("medusa", {"gamma": 4.0}).goal.decay == exponential(4.0)


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


def test_numbers_as_people_write_them() -> None:
    """A count may have an exponent, and so may what is inside of a mapping."""
    changes = {"steps": "1e3", "rows": 2.0, "objective": {"kl_div": "9e-1"}, "betas": [0, "9e-1"]}
    recipe = read_recipe("medusa", changes)
    assert recipe.steps == 1000 and type(recipe.rows) is int
    assert recipe.objective == {"kl_div": 0.9} and recipe.betas == (0.0, 0.9)
    quoted = read_recipe("medusa", {"lr": "0.001", "steps": "20", "shape": {"model": "1e5"}})
    assert (quoted.lr, quoted.steps, quoted.shape["model"]) == (0.001, 20, "1e5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": -1}, "clip is -1.0; it must be at least 0"),  # it would climb
        ({"prompt_weight": -0.5}, "prompt_weight is -0.5"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"own_texts": 0}, "own_texts is 0; it must be at least 1"),
        ({"own_every": -1}, "own_every is -1"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"distinct": -1}, "distinct is -1.0"),
        ({"warmup": 5}, "warmup is 5.0; it must be from 0 to 1"),
        ({"betas": [0.9, 1]}, "betas from 0 to below 1"),
        ({"betas": 0.9}, "betas is 0.9; it must be a list of numbers"),
        ({"lr": 0}, "lr must be above 0"),
        ({"lr": math.nan}, "lr is nan; it must be a number"),
        ({"rows": 2.5}, "rows is 2.5; it must be a whole number"),
        ({"steps": True}, "steps is True; it must be a whole number"),
        ({"objective": "kl_div"}, "objective is 'kl_div'; it must be a mapping of texts"),
        ({"shape": 3}, "shape is 3; it must be a mapping"),
        ({7: 3}, "setting of a recipe"),
    ],
)
def test_values_that_cannot_be(changes: dict[Any, Any], message: str) -> None:
    """By name, before anything is loaded."""
    with pytest.raises(ForetokenError, match=message):
        read_recipe("sps", changes)
