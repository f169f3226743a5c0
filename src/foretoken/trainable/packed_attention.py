"""Attention of transformers' models along packed rows, each text by itself.

On a CPU nothing exists for all pairs of a row's places: whole texts are left to torch's causal
attention, and where there is a window, or a soft cap of the scores, a text's places attend some at
a time. A mask over packed rows computes the same, in the square of a row's length; a GPU uses it
where it is small.

Legend: B rows, T places of a row, P places of a text or of a part of it, S places that these see,
H heads, K key/value heads, W head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from foretoken.trainable.lesson import Lesson, numbers_at_once

_NAME = "foretoken_packed"
_PLACES = 1024  # of a text that attend at a time, where they don't see all before them alike


def text_lengths(records: Tensor) -> list[list[int]]:
    """The lengths of the texts in each row, padding as one more; records: [B, T] whose each place
    is."""
    ends = [(row[1:] != row[:-1]).nonzero()[:, 0] + 1 for row in records]
    edges = [[0, *end.tolist(), records.shape[1]] for end in ends]
    return [[b - a for a, b in pairwise(row)] for row in edges]


class Packed:
    """A lesson's packed rows, as attention takes them."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._near: dict[int | None, Tensor] = {}
        rows, length = lesson.records.shape
        self.masked = rows * length**2 <= numbers_at_once(lesson.records.device, 0)
        """Whether all texts of all rows attend in one launch, by a mask that takes little of a
        GPU's memory; a CPU, and longer texts, have one for each text."""

    @cached_property
    def lengths(self) -> list[list[int]]:
        return text_lengths(self._lesson.records)

    def near(self, window: int | None) -> Tensor:
        """[B, 1, T, T] which places each place sees, within a window of so many places."""
        if window not in self._near:
            seen = self._lesson.attention_mask[:, None]
            self._near[window] = seen if window is None else seen.triu(1 - window)
        return self._near[window]


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Has a model of transformers attend so; its decoder is given `packed`, and no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attend)
    before = model.config._attn_implementation
    model.config._attn_implementation = _NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    packed: Packed,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [B, H, T, W], key and value [B, K, T, W] -> [B, T, H, W], as transformers calls it."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    if packed.masked and softcap is None:
        seen = packed.near(sliding_window)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, dropout_p=dropout, scale=scaling
        )
        return mixed.transpose(1, 2), None
    text = partial(_text, scale=scaling, dropout=dropout, window=sliding_window, cap=softcap)
    rows = []
    for row, lengths in enumerate(packed.lengths):
        parts = zip(*(x[row].split(lengths, 1) for x in (query, key, value)), strict=True)
        rows.append(torch.cat([text(*part) for part in parts], 1))
    return torch.stack(rows).transpose(1, 2), None


def _text(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    dropout: float,
    window: int | None,
    cap: float | None,
) -> Tensor:
    """One text's, [H, P, W]."""
    length = query.shape[1]
    if cap is None and (window is None or length <= window):
        out: Tensor = F.scaled_dot_product_attention(
            query[None], key[None], value[None], dropout_p=dropout, is_causal=True, scale=scale
        )
        return out[0]
    # Scores of a part are computed again for the gradients, where it isn't the whole text.
    some: Any = _some if length <= _PLACES else partial(checkpoint, _some, use_reentrant=False)
    parts = []
    for first in range(0, length, _PLACES):
        end = min(first + _PLACES, length)
        seen = slice(0 if window is None else max(0, first - window + 1), end)
        given = (query[:, first:end], key[:, seen], value[:, seen], first - seen.start)
        parts.append(some(*given, scale, dropout, window, cap))
    return torch.cat(parts, 1)


def _some(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    before: int,
    scale: float | None,
    dropout: float,
    window: int | None,
    cap: float | None,
) -> Tensor:
    """Some of a text's places [H, P, W], the first of which stands at place `before` of those that
    they may see [H, S, W]."""
    places, seen = query.shape[1], key.shape[1]
    apart = torch.arange(before, before + places, device=query.device)[:, None] - torch.arange(
        seen, device=query.device
    )
    visible = (apart >= 0) & (apart < (window or seen + 1))
    if cap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, dropout_p=dropout, scale=scale
        )
    scores = query @ key.mT * ((scale or query.shape[-1] ** -0.5) / cap)
    scores = (scores.tanh() * cap).masked_fill(~visible, -torch.inf)
    wide = torch.promote_types(query.dtype, torch.float32)
    shares = F.dropout(scores.softmax(-1, dtype=wide).to(query.dtype), dropout)
    return shares @ value
