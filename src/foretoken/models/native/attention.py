"""Attention of one pass over the cache, by torch.

Grouped heads are not expanded: the G query heads of a key/value head become G·T rows of one
attention call. A batch whose rows are not the first slots, in order, goes row by row, so that the
history is read where it lies. What lies before all windows is left out.

Legend: B rows, T tokens, H query heads, K key/value heads, G = H / K, W head width, L cache length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.cache import KV, as_stored
from foretoken.models.feed import Feed


def mix(
    turned: Tensor,
    layer: KV,
    feed: Feed,
    heads: int,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """Queries, keys and values [B, T, H + 2K, W] after the rotation: write, then attend.

    The result is [B, T, H·W]. cap: scores s become cap · tanh(s / cap).
    """
    batch, width, _, size = turned.shape
    write(layer, turned[:, :, heads:].view(batch, width, 2, -1, size), feed)
    return attend(turned[:, :, :heads], layer, feed, scale, window, cap)


def write(layer: KV, new: Tensor, feed: Feed) -> None:
    """Put keys and values `new` [B, T, 2, K, W] into a layer's cache, rounded where it stores them
    in fewer bits."""
    new = as_stored(new, layer.keys.dtype)
    for which, tensor in enumerate(layer):
        if feed.alone:
            start = feed.starts[0]
            end = start + new.shape[1]
            tensor[feed.slots[0], :, start:end] = new[0, :, which].transpose(0, 1)
        else:
            slots, places = feed.cells()
            tensor[slots, :, places] = new[:, :, which]


def attend(
    query: Tensor,
    layer: KV,
    feed: Feed,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """query [B, T, H, W] against a layer's cache -> [B, T, H·W]. bias: [B, H, T, L], added to the
    scores, of layers whose heads are not grouped."""
    groups = query.shape[2] // layer.keys.shape[1]
    mask = feed.mask(query.dtype, window, groups)  # [B, 1, G·T, L]
    if bias is not None:
        mask = bias if mask is None else mask + bias
    if feed.aligned or len(feed.slots) == 1:
        cells = slice(feed.passed(min(feed.starts), window), feed.length)
        cached = _seen(layer, feed.slots[0], len(feed.slots), cells, query.dtype)
        return _grouped(query, cached, None if mask is None else mask[..., cells], scale, cap)
    rows = []
    for b, slot in enumerate(feed.slots):
        start = feed.starts[b]
        # A short row's padding reaches beyond the cache, and its mask doesn't.
        cells = slice(feed.passed(start, window), min(start + query.shape[1], feed.length))
        row_mask = None if mask is None else mask[b : b + 1, ..., cells]
        cached = _seen(layer, slot, 1, cells, query.dtype)
        rows.append(_grouped(query[b : b + 1], cached, row_mask, scale, cap))
    return torch.cat(rows)


def _seen(layer: KV, first: int, rows: int, cells: slice, dtype: torch.dtype) -> KV:
    """Some cells of neighbouring slots, [B, K, L, W] each: views, where they are stored in this
    dtype."""
    keys, values = (tensor[first : first + rows, :, cells].to(dtype) for tensor in layer)
    return KV(keys, values)


def _grouped(
    query: Tensor, cached: KV, mask: Tensor | None, scale: float, cap: float | None
) -> Tensor:
    """One attention call: query [B, T, H, W], cached [B, K, L, W], mask [B, 1, G·T, L]."""
    batch, width, heads, size = query.shape
    groups = heads // cached.keys.shape[1]
    if width == 1:  # nothing to reorder
        stacked = query.view(batch, -1, groups, size)
        out = _product(stacked, cached, mask, scale, cap)
        return out.reshape(batch, 1, heads * size)
    stacked = query.view(batch, width, -1, groups, size).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(batch, -1, groups * width, size)
    out = _product(stacked, cached, mask, scale, cap)
    unstacked = out.view(batch, -1, groups, width, size).permute(0, 3, 1, 2, 4)
    return unstacked.reshape(batch, width, heads * size)


def _product(
    query: Tensor, cached: KV, mask: Tensor | None, scale: float, cap: float | None
) -> Tensor:
    """Attention of query [B, K, R, W] over keys and values [B, K, L, W], mask [B, 1, R, L]."""
    keys, values = cached
    if cap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    scores = (query @ keys.mT * (scale / cap)).tanh() * cap
    if mask is not None:
        scores = scores + mask
    exact = torch.promote_types(query.dtype, torch.float32)
    return scores.softmax(-1, dtype=exact).to(query.dtype) @ values
