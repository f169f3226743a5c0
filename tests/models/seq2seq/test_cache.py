"""Sources in the cache: they stay with their sequence, whatever becomes of the others."""

from __future__ import annotations

import torch

from foretoken.models.budget import CacheBudget
from foretoken.models.cache import alike
from foretoken.models.seq2seq.cache import SourcedCache, padding_mask
from foretoken.models.warm import Text

CPU = torch.device("cpu")


def cache_of(budget: CacheBudget | None = None) -> SourcedCache:
    return SourcedCache(alike(2, 2, 4), 3, 16, torch.float64, CPU, spare=2, budget=budget)


def fill(cache: SourcedCache, slot: int, length: int, value: float) -> None:
    cache.sources.reserve([slot], [length])
    for layer in cache.sources.layer:
        layer.keys[slot, :, :length] = layer.values[slot, :, :length] = value
    cache.sources.lengths[slot] = length


def test_a_source_moves_with_its_sequence() -> None:
    cache = cache_of()
    for owner in range(3):
        fill(cache, cache.acquire(owner), 3 + owner, float(owner + 1))
    cache.release(0)
    assert cache.slot(2) == 0 and cache.sources.slot(2) == 0
    assert cache.source_lengths([0, 1, 2]) == [5, 4, 0]
    keys = cache.sources.layer[1].keys
    assert (keys[0, :, :5] == 3).all() and (keys[1, :, :4] == 2).all() and not keys[2].any()


def test_a_sample_gets_a_copy() -> None:
    cache = cache_of()
    fill(cache, cache.acquire(0), 6, 1.0)
    cache.acquire(1)
    cache.copy_source(0, 1)
    assert cache.source_lengths([1]) == [6]
    assert torch.equal(cache.sources.layer[0].values[1], cache.sources.layer[0].values[0])


def test_nothing_of_another_text_is_kept() -> None:
    """The same text after another source is another one."""
    cache, text = cache_of(), Text([7, 8, 9], "salt")
    fill(cache, cache.acquire(0, text, 2), 6, 1.0)
    cache.reserve([0], [3])
    cache.lengths[0] = 3
    assert cache.acquire(1, text, 2) == 1 and cache.lengths[1] == 0  # beside it
    cache.release(1, warm=True)
    cache.release(0, warm=True)
    assert cache.warm == 0 == cache.sources.warm
    slot = cache.acquire(2, text, 2)
    assert cache.lengths[slot] == 0 and cache.source_lengths([slot]) == [0]


def test_padding_is_not_seen() -> None:
    mask = padding_mask([2, 3], torch.float64, CPU)
    assert mask.shape == (2, 1, 1, 3)
    assert mask[:, 0, 0].isinf().tolist() == [[False, False, True], [False, False, False]]
    cache = cache_of()
    for owner, length in enumerate((4, 4, 2)):
        fill(cache, cache.acquire(owner), length, 1.0)
    assert cache.source_mask([0, 1], torch.float64) is None
    assert cache.source_mask([0, 2], torch.float64) is not None


def test_a_budget_counts_both() -> None:
    budget = CacheBudget()
    cache = cache_of(budget)
    assert budget.needs(10) == cache.needs(10) + cache.sources.needs(10) > cache.needs(10)
