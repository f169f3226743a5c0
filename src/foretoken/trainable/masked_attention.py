"""Attention under a mask in training, for some of a row's places at a time.

A mask, or scores, of all pairs of a row's places would grow with the square of its length. Those of
some places exist while these attend, for the keys that they see, and are computed again for the
gradients. A short row attends at once.

Legend: B rows, T places, Q of them, S keys, H heads, K key/value heads, W head width.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from foretoken.trainable.lesson import numbers_at_once

_NUMBERS = 10**6  # of a mask, or of scores, that exist at once on a CPU: 4 MB in float32
_QUERIES = 400  # of all rows and heads together that exist at once, at least: each part reads keys
_PLACES = 16  # that attend at a time, at least, however many rows and heads there are
_KEPT = 2**24  # numbers that a GPU keeps for the gradients: 64 MiB in float32

Mask = Callable[[slice], Tensor]
"""A stretch of places -> which keys each of them sees, [B, Q, S]; in [B, Q, …, S] several do."""


def attend_masked(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """q [B, T, H, W], key and value [B, S, K, W] -> [B, T, H·W]. Every place sees a key."""
    some = partial(attend_at_once, scale=scale, dropout=dropout)
    keys = [for_heads(x, q.shape[2]) for x in (key, value)]
    return in_parts(some, mask, [q], keys, len(q) * key.shape[1])


def in_parts(
    some: Callable[..., Tensor], mask: Mask, own: Seq[Tensor], keys: Seq[Tensor], numbers: int
) -> Tensor:
    """What `some(visible [B, Q, …, S], *own [B, Q, …], *keys [B, S, …])` gives for each part of the
    places of `own` [B, T, …] and those of the keys that it sees, joined. numbers: how many it
    computes for one place and all keys."""
    places = own[0].shape[1]
    few = max(_NUMBERS, _QUERIES * keys[0].shape[1], _PLACES * numbers)
    if places * numbers <= (_KEPT if own[0].is_cuda else 2 * few):  # two parts save nothing
        return some(mask(slice(0, places)), *own, *keys)

    def part(at: slice, *given: Tensor) -> Tensor:
        visible = mask(at)
        seen = _seen(visible)
        return some(visible[..., seen], *given, *(x[:, seen] for x in keys))

    count = ceil(places * numbers / numbers_at_once(own[0].device, few))
    parts, end = [], 0
    for given in zip(*(x.chunk(count, 1) for x in own), strict=True):
        at = slice(end, end := end + given[0].shape[1])
        parts.append(checkpoint(part, at, *given, use_reentrant=False))
    return torch.cat(parts, 1)


def attend_at_once(
    visible: Tensor,
    q: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Where `visible` [B, T, S] is true: q [B, T, H, W], key and value [B, S, H, W] ->
    [B, T, H·W]."""
    q, key, value = (x.transpose(1, 2) for x in (q, key, value))
    mixed = F.scaled_dot_product_attention(
        q, key, value, attn_mask=visible[:, None], scale=scale, dropout_p=dropout
    )
    return mixed.transpose(1, 2).flatten(2)


def for_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values [B, S, K, W], repeated for the heads [B, S, H, W]."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)


def _seen(visible: Tensor) -> slice:
    """The stretch of keys from the first that any place sees to the last."""
    keys = visible.flatten(0, -2).any(0).nonzero()
    return slice(int(keys[0]), int(keys[-1]) + 1) if len(keys) else slice(0, 0)
