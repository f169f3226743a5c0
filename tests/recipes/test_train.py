"""The training of the bundled models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from recipe_data import random_llama


def test_the_average_follows_the_model() -> None:
    """Also onto its device: of a run that is resumed both begin on the CPU, and one moves."""
    import train

    weights = {"w": torch.ones(2, device="meta")}
    model: Any = SimpleNamespace(state_dict=lambda: weights)
    run = train.Run(model, average={"w": torch.zeros(2)})
    run.follow()
    assert run.average["w"].device == weights["w"].device
    run = train.Run(random_llama())
    run.follow()
    before = {name: value.clone() for name, value in run.average.items()}
    with torch.no_grad():
        run.model.norm.weight += 1.0
    run.follow()
    change = run.average["norm.weight"] - before["norm.weight"]
    torch.testing.assert_close(change, torch.full_like(change, 1 - train.AVERAGE))
