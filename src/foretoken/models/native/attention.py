"""Attention of one pass over the cache, by torch.

Grouped heads are not expanded: the G query heads of a key/value head become G·T rows of one
attention call. A batch whose rows are not the first slots, in order, goes row by row, so that the
history is read where it lies.

Legend: B rows, T tokens, H query heads, K key/value heads, G = H / K, W head width, L cache length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.feed import Feed


def mix(
    turned: Tensor,
    layer: Tensor,
    feed: Feed,
    heads: int,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """Queries, keys and values [B, T, H + 2K, W] after the rotation: write, then attend.

    `layer` is one layer's cache [2, slots, K, max, W]; the result is [B, T, H·W]. cap: scores s
    become cap · tanh(s / cap).
    """
    batch, width, _, size = turned.shape
    write(layer, turned[:, :, heads:].view(batch, width, 2, -1, size), feed)
    return attend(turned[:, :, :heads], layer, feed, scale, window, cap)


def write(layer: Tensor, new: Tensor, feed: Feed) -> None:
    """Put keys and values `new` [B, T, 2, K, W] into a layer's cache [2, slots, K, max, W]."""
    if feed.alone:
        start = feed.starts[0]
        end = start + new.shape[1]
        layer[:, feed.slots[0], :, start:end] = new[0].permute(1, 2, 0, 3)
    else:
        slots, places = feed.cells()
        layer[:, slots, :, places] = new


def attend(
    query: Tensor,
    layer: Tensor,
    feed: Feed,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """query [B, T, H, W] against a layer's cache [2, slots, K, max, W] -> [B, T, H·W]."""
    groups = query.shape[2] // layer.shape[2]
    mask = feed.mask(query.dtype, window, groups)  # [B, 1, G·T, L]
    if feed.aligned or len(feed.slots) == 1:
        first = feed.slots[0]
        cached = layer[:, first : first + len(feed.slots), :, : feed.length]
        return _grouped(query, cached, mask, scale, cap)
    rows = []
    for b, slot in enumerate(feed.slots):
        end = feed.starts[b] + query.shape[1]
        row_mask = None if mask is None else mask[b : b + 1, :, :, :end]
        cached = layer[:, slot : slot + 1, :, :end]
        rows.append(_grouped(query[b : b + 1], cached, row_mask, scale, cap))
    return torch.cat(rows)


def _grouped(
    query: Tensor, cached: Tensor, mask: Tensor | None, scale: float, cap: float | None
) -> Tensor:
    """One attention call: query [B, T, H, W], cached [2, B, K, L, W], mask [B, 1, G·T, L]."""
    batch, width, heads, size = query.shape
    groups = heads // cached.shape[2]
    if width == 1:  # nothing to reorder
        stacked = query.view(batch, -1, groups, size)
        out = _product(stacked, cached[0], cached[1], mask, scale, cap)
        return out.reshape(batch, 1, heads * size)
    stacked = query.view(batch, width, -1, groups, size).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(batch, -1, groups * width, size)
    out = _product(stacked, cached[0], cached[1], mask, scale, cap)
    unstacked = out.view(batch, -1, groups, width, size).permute(0, 3, 1, 2, 4)
    return unstacked.reshape(batch, width, heads * size)


def _product(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float | None,
) -> Tensor:
    """Attention of query [B, K, R, W] over keys and values [B, K, L, W], mask [B, 1, R, L]."""
    if cap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    scores = (query @ keys.mT * (scale / cap)).tanh() * cap
    if mask is not None:
        scores = scores + mask
    exact = torch.promote_types(query.dtype, torch.float32)
    return scores.softmax(-1, dtype=exact).to(query.dtype) @ values
