"""The parts of a stack against transformers'."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN
from transformers.models.t5.modeling_t5 import T5Attention

from foretoken.models.seq2seq.stack import ACTIVATIONS, RelativeBias, gated


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 12), (6, 50)])
def test_relative_bias_is_t5s(both: bool, buckets: int, farthest: int) -> None:
    table = torch.randn(buckets, 3, dtype=torch.float64)
    queries, keys = torch.tensor([[0, 3, 200, 77]]), torch.arange(220)[None]
    apart = keys[:, None] - queries[..., None]
    theirs = table[T5Attention._relative_position_bucket(apart, both, buckets, farthest)]
    mine = RelativeBias(table, farthest, both)(queries, keys)
    if both:
        assert torch.equal(mine, theirs.permute(0, 3, 1, 2))
    else:  # what lies ahead is masked
        seen = (apart <= 0)[:, None].expand_as(mine)
        assert torch.equal(mine[seen], theirs.permute(0, 3, 1, 2)[seen])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_their_names(name: str) -> None:
    states = torch.linspace(-4, 4, 50, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name](states), ACT2FN[name](states))


def test_the_gate_is_the_first_half() -> None:
    states = torch.randn(2, 6)
    assert torch.equal(gated(F.relu)(states), F.relu(states[:, :3]) * states[:, 3:])
