"""A model whose layers repeat, for the tests that run through them in cycles."""

from __future__ import annotations

from typing import Any

import torch

from foretoken.models.native.check import CYCLE
from foretoken.testing import native
from foretoken.testing.models import Pair, tiny_transformers

LAYERS, CYCLES = 2, 3


def cyclic(vocab_size: int = 97, calm: float = 0.3, **options: Any) -> Any:
    """Two layers, run through three times; `calm`: how much of its change a layer keeps, so that
    the guesses of the first cycle are right now and then."""
    model = tiny_transformers(vocab_size, layers=LAYERS * CYCLES, **options)
    setattr(model.config, CYCLE, LAYERS)
    layers = model.model.layers
    with torch.no_grad():
        for i, layer in enumerate(layers):
            layer.self_attn.o_proj.weight *= calm
            layer.mlp.down_proj.weight *= calm
            if i >= LAYERS:
                layer.load_state_dict(layers[i - LAYERS].state_dict())
    return model


def shared_pair() -> Pair:
    """It as the target."""
    model = cyclic()
    return Pair(native(model), native(model), model)
