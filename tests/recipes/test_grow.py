"""Growing a model keeps its function."""

from __future__ import annotations

import pytest
import torch

from recipe_data import random_llama


def test_growth_keeps_the_function() -> None:
    """A wider and deeper model computes the same, and its new parts learn."""
    import grow
    import model

    old = random_llama()
    new = grow.grow(old, model.Config(96, 5, 4, 2, 160, vocab=256, head_dim=32, eps=1e-6 * 64 / 96))
    ids = torch.randint(256, (3, 20))
    assert (new.logits(ids) - old.logits(ids)).abs().max() < 1e-4
    new.logits(ids).square().mean().backward()
    written = new.layers[0].self_attn.o_proj.weight.grad
    assert written is not None and written[64:].abs().max() > 0  # what is new can learn
    with pytest.raises(ValueError, match="layers shrinks"):
        grow.grow(old, model.Config(96, 1, 4, 2, 160, vocab=256, head_dim=32))
