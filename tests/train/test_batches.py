"""Batches follow from seed and number."""

from __future__ import annotations

import itertools

import torch

from foretoken.testing import Pair
from foretoken.train.batches import Batches
from lessons import written


def test_batches_follow_from_their_number(pair: Pair) -> None:
    """The same rows for the same seed and number; whole records, cut at the row's end alone."""
    records = written(pair.target)
    batches = Batches(records, 3, 40, seed=5)
    first, again = batches.batch(7), Batches(records, 3, 40, seed=5).batch(7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.tokens, batches.batch(8).tokens)
    assert not torch.equal(first.tokens, Batches(records, 3, 40, seed=6).batch(7).tokens)
    texts = [records.prompt(i) + records.answer(i) for i in range(len(records))]
    for row, positions in zip(first.tokens.tolist(), first.positions.tolist(), strict=True):
        starts = [i for i, place in enumerate(positions) if place == 0] + [40]
        for a, b in itertools.pairwise(starts):
            assert any(text[: b - a] == row[a:b] for text in texts)
