"""Heads that know a part of the tokens."""

from __future__ import annotations

import pytest
import torch

from foretoken.errors import ForetokenError
from foretoken.models.reduced_vocabulary import choose, first_and_ends, ids_of, offsets, spread


def test_the_most_frequent_tokens_are_chosen() -> None:
    """In the order of their ids; of equals the first."""
    d2t, t2d = offsets(3, 7)
    assert ids_of(d2t).tolist() == [0, 1, 2] and t2d.tolist() == [True] * 3 + [False] * 4
    choose(d2t, t2d, torch.tensor([0, 5, 2, 2, 9, 0, 1]))
    assert ids_of(d2t).tolist() == [1, 2, 4]
    assert t2d.nonzero()[:, 0].tolist() == [1, 2, 4]


def test_logits_of_all_tokens() -> None:
    full = spread(torch.tensor([[1.0, 2.0]]), torch.tensor([1, 3]), 4)
    assert full.tolist() == [[-torch.inf, 1.0, -torch.inf, 2.0]]


def test_the_first_tokens_and_the_ends_of_text() -> None:
    """In their order, ends among the first counted once; no size that leaves nothing out, or
    nothing but ends."""
    assert first_and_ends(3, 9, {8, 0}).tolist() == [0, 1, 8]
    assert first_and_ends(8, 9, {4}).tolist() == list(range(8))
    for size in (1, 2, 9):
        with pytest.raises(ForetokenError, match=r"must be above 2, .* and below 9"):
            first_and_ends(size, 9, {8, 0})
