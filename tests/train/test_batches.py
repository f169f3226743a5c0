"""Batches follow from seed and number."""

from __future__ import annotations

import itertools

import torch

from foretoken.testing import Pair
from foretoken.train.batches import Batches, collate
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


def lengths(sizes: list[int], limit: int) -> Records:
    """Records of these lengths, each with a prompt of one token."""
    return Records.of([([i % 90], [5] * (size - 1)) for i, size in enumerate(sizes)], limit, 97)


def epoch_of(batches: Batches, number: int) -> list[list[int]]:
    """The records in each of its rows."""
    count = len(batches._packed)
    return [batches._row(number * count + i) for i in range(count)]


def test_epochs(pair: Pair) -> None:
    """Each has every record once, in rows that come in another order, with other neighbours."""
    records = Records.of([([i], [50 + i] * (3 + i % 7)) for i in range(40)], 16, 97)
    recipe = Recipe(rows=1, length=24, max_tokens=16, order="epochs")
    halves = [records.take(range(20)), records.take(range(20, 40))]
    batches = Batches.of(halves, recipe, seed=3)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    for rows in (first, second):
        assert sorted(itertools.chain.from_iterable(rows)) == list(range(40))
    assert first != second and sorted(map(sorted, first)) != sorted(map(sorted, second))
    number = len(first) + 2
    again = Batches.of(halves, recipe, seed=3).batch(number)  # as a resumed training asks
    assert torch.equal(again.tokens, batches.batch(number).tokens)
    assert epoch_of(Batches.of(halves, recipe, seed=4), 0) != first


def test_every_token_comes_once_an_epoch() -> None:
    """The last of each record too: rows have whole records."""
    records = lengths([400] * 20 + [112, 60, 512, 40] * 5, 511)
    batches = Batches(records, 2, 512, seed=1, order="epochs")
    for epoch in range(2):
        layout = epoch_of(batches, epoch)
        places = collate(records, layout, 512, 0.0).places
        found = places[places >= 0].sort().values
        assert torch.equal(found, torch.arange(len(records.tokens)))


def test_rows_of_an_epoch_are_filled() -> None:
    """Few places are left empty, also where there are more rows than are open at a time."""
    sizes = [100 * (1 + i % 10) for i in range(1000)]
    packed = Batches(lengths(sizes, 1000), 1, 1000, seed=1, order="epochs")._packed
    assert len(packed) <= 1.05 * sum(sizes) / 1000


def test_sources_are_drawn_from_equally_often() -> None:
    """However many texts each has."""
    few, many = lengths([4] * 2, 8), lengths([4] * 98, 8)
    recipe = Recipe(rows=1, length=400, max_tokens=8)
    batches = Batches.of([few, many], recipe, seed=3)
    drawn = [record for number in range(10) for record in batches._row(number)]
    assert 0.4 < sum(record < 2 for record in drawn) / len(drawn) < 0.6
    assert {0, 1} <= set(drawn) and max(drawn) == 99 and len(set(drawn)) > 90
    alike = Batches.of([many, many], recipe, seed=3)
    first = [record < 98 for number in range(10) for record in alike._row(number)]
    assert 0.4 < sum(first) / len(first) < 0.6


def test_how_many_nodes_a_draft_may_have() -> None:
    """From a prompt's last token on, as many as serving would write after it but one, which the
    target itself adds to a whole draft."""
    records = Records.of([([1, 2, 3], [4, 5, 6])], 5, 97)
    assert collate(records, [[0]], 8, 0.0).max_nodes.tolist() == [[-1, -1, 4, 3, 2, -1, -1, -1]]
    both = Records.of([([1, 2], [3]), ([], [4, 5, 6])], 5, 97)  # a text that nothing asks for
    assert collate(both, [[0, 1]], 8, 0.0).max_nodes.tolist() == [[-1, 4, *[-1] * 6]]
