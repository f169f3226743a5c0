"""Attention over the cache against the sum over what each token sees."""

from __future__ import annotations

import pytest
import torch

from caches import randomize, stored
from foretoken.models.cache import KV, KVCache, alike
from foretoken.models.feed import Feed, chain_feed, frontier_feed, tree_feed
from foretoken.models.native import attention
from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def slow(query: torch.Tensor, layer: KV, feed: Feed, window: int | None) -> torch.Tensor:
    """Head by head and token by token, over the cells that are seen."""
    seen, out = feed.visible(window), torch.zeros_like(query)
    for b, slot in enumerate(feed.slots):
        for t in range(query.shape[1]):
            cells = seen[b, t].nonzero()[:, 0]
            for head in range(HEADS):
                keys, values = (x[slot, head // (HEADS // KV_HEADS)][cells] for x in layer)
                weights = (keys @ query[b, t, head] * WIDTH**-0.5).softmax(0)
                out[b, t, head] = weights @ values
    return out.flatten(2)


@pytest.mark.parametrize("slots", [[0], [0, 1], [1, 0], [2]], ids=str)
@pytest.mark.parametrize("window", [None, 3])
def test_each_token_sees_its_path(slots: list[int], window: int | None) -> None:
    """Ragged rows with trees, whether the rows lie in order or not, with a window or without."""
    torch.manual_seed(0)
    cache = KVCache(alike(1, KV_HEADS, WIDTH), 3, 24, torch.float64, CPU)
    randomize(cache)
    cache.lengths[:] = [5, 2, 9]
    trees = from_paths([[[1, 2], [1, 3], [4]], [[5, 6]]][: len(slots)], CPU)
    feed = tree_feed(cache, slots, [0] * len(slots), trees)
    width = feed.tokens.shape[1]
    turned = torch.randn(len(slots), width, HEADS + 2 * KV_HEADS, WIDTH, dtype=torch.float64)
    got = attention.mix(turned, cache.layer[0], feed, HEADS, WIDTH**-0.5, window)
    expected = slow(turned[:, :, :HEADS], cache.layer[0], feed, window)
    for row, count in enumerate(trees.counts):
        torch.testing.assert_close(got[row, : count + 1], expected[row, : count + 1])


@pytest.mark.parametrize("slots", [[0], [0, 1], [1, 0]], ids=str)
@pytest.mark.parametrize("window", [1, 20, 100, 400])
@pytest.mark.parametrize("frontier", [False, True])
def test_what_windows_have_passed_is_not_read(
    slots: list[int], window: int, frontier: bool
) -> None:
    """NaN before a row's window, but for the step that cells are taken by, changes nothing; also
    where tokens of an earlier pass stand before those of this one."""
    torch.manual_seed(0)
    cache = KVCache(alike(1, KV_HEADS, WIDTH), 2, 400, torch.float64, CPU)
    randomize(cache)
    cache.lengths[:] = [317, 205]
    trees = from_paths([[[1, 2], [1, 3], [4]], [[5, 6]]][: len(slots)], CPU)
    feed = tree_feed(cache, slots, [0] * len(slots), trees)
    if frontier:  # two more nodes under a root and its two children
        sees = torch.eye(5, dtype=torch.bool)[3:] | torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 0, 0]])
        tokens = torch.zeros(len(slots), 2, dtype=torch.long)
        feed = frontier_feed(
            cache, slots, tokens, sees.bool().expand(len(slots), -1, -1), [0, 1, 1, 2, 2]
        )
    shape = (len(slots), feed.tokens.shape[1], HEADS + 2 * KV_HEADS, WIDTH)
    turned, layer = torch.randn(shape, dtype=torch.float64), cache.layer[0]
    attention.mix(turned, layer, feed, HEADS, WIDTH**-0.5, window)
    expected = slow(turned[:, :, :HEADS], layer, feed, window)
    lowest = {slot: cache.lengths[slot] - frontier - window for slot in slots}
    if slots == [0, 1]:  # read as one view
        lowest = dict.fromkeys(slots, min(lowest.values()))
    for slot in slots:
        for tensor in layer:
            tensor[slot, :, : max(0, lowest[slot] - 63)] = torch.nan
    got = attention.mix(turned, layer, feed, HEADS, WIDTH**-0.5, window)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("slots", [[0, 1], [1, 0], [1, 2]], ids=str)
@pytest.mark.parametrize(("window", "cap"), [(None, None), (3, None), (None, 2.0)])
def test_a_short_row_at_the_caches_end(
    slots: list[int], window: int | None, cap: float | None
) -> None:
    """The rest of a prompt, beside a long chunk of another: its padding would stand after the last
    cell that can be seen."""
    torch.manual_seed(0)
    cache = KVCache(alike(1, KV_HEADS, WIDTH), 3, 24, torch.float64, CPU)
    randomize(cache)
    cache.lengths[:] = [20, 20, 20]
    cache.lengths[slots[1]] = 2
    feed = chain_feed(cache, slots, [[5] * 3, [7] * 12])
    turned = torch.randn(2, 12, HEADS + 2 * KV_HEADS, WIDTH, dtype=torch.float64)
    got = attention.mix(turned, cache.layer[0], feed, HEADS, WIDTH**-0.5, window, cap)
    if cap is not None:
        assert got.isfinite().all()
        return
    expected = slow(turned[:, :, :HEADS], cache.layer[0], feed, window)
    for row, count in enumerate((3, 12)):
        torch.testing.assert_close(got[row, :count], expected[row, :count])


def test_keys_and_values_land_in_their_cells() -> None:
    """After the committed length of each slot, and nowhere else but in the last, unread cell."""
    cache = KVCache(alike(1, 1, 2), 2, 6, torch.float64, CPU)
    cache.lengths[:] = [1, 3]
    feed = tree_feed(cache, [1, 0], [0, 0], from_paths([[[1]], [[2]]], CPU))
    new = torch.arange(16, dtype=torch.float64).view(2, 2, 2, 1, 2)
    attention.write(cache.layer[0], new, feed)
    layer = stored(cache)[0]
    assert torch.equal(layer[:, 1, 0, 3:5], new[0, :, :, 0].transpose(0, 1))
    assert torch.equal(layer[:, 0, 0, 1:3], new[1, :, :, 0].transpose(0, 1))
    assert not layer[:, 0, 0, 3:].any() and not layer[:, 1, 0, :3].any()
