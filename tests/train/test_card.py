"""Cards show what was estimated next to what was served."""

from __future__ import annotations

import re

import pytest
import torch

from foretoken.engine.stats import AcceptanceStats
from foretoken.train.card import loops, noted, recipe_lines, table
from foretoken.train.recipe import Recipe
from foretoken.trainable.lesson import Estimate


def test_the_table() -> None:
    """A row each for estimate and engine, with the share of steps that accepted each place."""
    served = AcceptanceStats(tokens=30, passes=20, accepted_at=[8, 2])
    lines = table(Estimate(30.0, 20.0, [9.0, 3.0]), served)
    assert lines[0].endswith("| place 1 | place 2 |") and len(lines) == 4
    assert "| estimated | 1.500 | 0.450 | 0.150 |" in lines
    assert lines[3].endswith("| 0.400 | 0.100 |")


def test_a_table_of_what_was_not_served() -> None:
    """It has the estimate alone."""
    lines = table(Estimate(30.0, 20.0, [9.0, 3.0]), None)
    assert lines[-1] == "| estimated | 1.500 | 0.450 | 0.150 |" and len(lines) == 3


def test_when_where_and_of_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card says on what machine its numbers were measured, by the GPU where it was one, and
    whether loops are in them."""
    said = noted(torch.device("cpu"))
    assert re.fullmatch(r"\*Noted in [A-Z]\w+ \d{4} on \d+ cores of .+\.\*", said)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {device.index}")
    said = noted(torch.device("cuda:1"))
    assert re.fullmatch(r"\*Noted in [A-Z]\w+ \d{4} on one NVIDIA 1\.\*", said)
    assert loops(Recipe(distinct=0.0)) == "Answers that loop are in both."
    assert "left out" in loops(Recipe(distinct=0.8))
    assert loops(Recipe(distinct=0.0), "it") == "Answers that loop are in it."


def test_a_recipe_as_it_is_written() -> None:
    """Every setting on a line of its own, tuples as lists."""
    lines = recipe_lines(Recipe(lr=0.5))
    assert "    lr: 0.5" in lines and "    betas:" in lines
