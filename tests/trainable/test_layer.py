"""A decoder layer's shape, and its rotary embedding."""

from __future__ import annotations

import pytest
import torch

from foretoken.trainable.layer import (
    LayerShape,
    heads_for,
    of_all,
    of_each,
    rotary_angles,
    rotate,
)


def test_the_usual_shape() -> None:
    """Heads of about 48, a feed-forward of 8/3 of the width, and attention that reads twice it."""
    shape = LayerShape.for_width(288, 2)
    assert (shape.outer, shape.reads, shape.heads, shape.kv_heads) == (288, 576, 6, 6)
    assert (shape.intermediate, shape.head_dim) == (768, 48)
    given = LayerShape.for_width(288, 1, heads=4, kv_heads=2, head_width=64, norm_eps=1e-5)
    assert (given.heads, given.kv_heads, given.head_dim, given.norm_eps) == (4, 2, 64, 1e-5)
    assert [heads_for(width) for width in (8, 32, 98, 100, 288, 4096)] == [1, 1, 1, 2, 6, 64]


def test_numbers_of_layers_that_may_differ() -> None:
    assert of_each(3, 2) == of_each([3, 3], 2) == of_each((3, 3), 2) == [3, 3]
    assert of_all([3, 3]) == 3 and of_all([3, None]) == [3, None]
    for count in (1, 3):
        with pytest.raises(ValueError, match=f"there are 2 layers, and numbers for {count}"):
            of_each([3] * count, 2)


def test_rotations_depend_on_distance_alone() -> None:
    """The product of a query and a key is the same wherever both are moved to."""
    shape = LayerShape.for_width(16, 1, heads=2)
    query, key = torch.randn(2, 1, 1, 2, 8, dtype=torch.float64)

    def product(at: int, other: int) -> torch.Tensor:
        q = rotate(query, *rotary_angles(shape, torch.tensor([[at]]), query))
        k = rotate(key, *rotary_angles(shape, torch.tensor([[other]]), key))
        return (q * k).sum(-1)

    torch.testing.assert_close(product(3, 7), product(103, 107))
    assert not torch.allclose(product(3, 7), product(3, 8))


def test_a_rotation_may_make_what_it_turns_larger() -> None:
    """As YaRN's does; at the beginning, where nothing is turned, that is all."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    scaling = {**yarn, "attention_factor": 1.5}
    shape = LayerShape.for_width(16, 1, heads=2, rope_scaling=scaling)
    cos, sin = rotary_angles(shape, torch.tensor([[0]]), torch.zeros(1))
    assert cos.flatten().tolist() == [1.5] * 8 and not sin.any()


def test_angles_of_a_layer_in_half_precision() -> None:
    """They are computed in a wider one, in which far places are not rounded together."""
    shape, places = LayerShape.for_width(16, 1, heads=2), torch.tensor([[2999, 3001]])
    found, exact = (
        torch.stack(rotary_angles(shape, places, torch.zeros(1, dtype=dtype))).double()
        for dtype in (torch.float16, torch.float64)
    )
    torch.testing.assert_close(found, exact, atol=2e-3, rtol=0)
