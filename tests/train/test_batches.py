"""Batches follow from seed and number."""

from __future__ import annotations

import itertools

import torch

from foretoken.testing import Pair
from foretoken.train.batches import Batches
from foretoken.train.recipe import Recipe
from foretoken.train.records import Records
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


def test_epochs(pair: Pair) -> None:
    """In each every record is in one row, in rows that come in another order than before."""
    records = Records.of([([i], [50 + i] * (3 + i % 7)) for i in range(40)], 16, 97)
    recipe = Recipe(rows=1, length=24, max_tokens=16, order="epochs")
    halves = [records.take(range(20)), records.take(range(20, 40))]
    batches = Batches.of(halves, recipe, seed=3)

    def row(number: int) -> list[int]:
        rows = batches.batch(number)
        return rows.tokens[0][rows.positions[0] == 0].tolist()

    count = next(n for n in range(1, 41) if sum(len(row(i)) for i in range(n)) >= 40)
    first, second = ([row(i) for i in range(a, a + count)] for a in (0, count))
    for rows in (first, second):
        assert sorted(itertools.chain.from_iterable(rows)) == list(range(40))
    assert first != second and sorted(first) == sorted(second)
    again = Batches.of(halves, recipe, seed=3).batch(count + 2)
    assert torch.equal(again.tokens, batches.batch(count + 2).tokens)
    other = [Batches.of(halves, recipe, seed=4).batch(i).tokens for i in range(count)]
    assert not all(torch.equal(batches.batch(i).tokens, x) for i, x in enumerate(other))
