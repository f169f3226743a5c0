"""Attention of transformers' models along packed rows, each text by itself.

On a CPU nothing exists for all pairs of a row's places: whole texts are left to torch's causal
attention, and where there is a window, or a soft cap of the scores, a text's places attend some at
a time. A mask over packed rows computes the same, in the square of a row's length; a GPU uses it
where it is small. `masked` is for rows that have more than texts.

Legend: B rows, T places of a row, P places of a text, Q of them, S places that these see, H heads,
K key/value heads, W head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.trainable.lesson import Lesson, numbers_at_once
from foretoken.trainable.masked_attention import Mask, attend_masked, in_parts

_NAME = "foretoken_packed"

Among = Callable[..., Tensor]
"""Queries [B, H, T, W], keys and values [B, K, T, W], and what transformers says of the layer ->
[B, T, H, W]."""


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
            seen = self._lesson.mask(slice(None))[:, None]
            self._near[window] = seen if window is None else seen.triu(1 - window)
        return self._near[window]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **others: Any,
    ) -> Tensor:
        """`Among`: each place sees those of its text before it, within the layer's window."""
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        if self.masked and softcap is None:
            seen = self.near(sliding_window)
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=seen, dropout_p=dropout, scale=scaling
            )
            return mixed.transpose(1, 2)
        text = partial(_text, scale=scaling, dropout=dropout, window=sliding_window, cap=softcap)
        rows = []
        for row, lengths in enumerate(self.lengths):
            parts = zip(*(x[row].split(lengths, 1) for x in (query, key, value)), strict=True)
            rows.append(torch.cat([text(*part) for part in parts]))
        return torch.stack(rows)


def masked(
    mask: Mask,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> Tensor:
    """`Among` all places under a mask, in layers that have neither windows nor soft caps."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    mixed = attend_masked(q, k, v, mask, scaling, dropout)
    return mixed.view(*q.shape)


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Has a model of transformers attend so, by the configuration that its layers share; its
    decoder is given `among`, and no mask."""
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
    among: Among,
    **layer: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it."""
    return among(query, key, value, **layer), None


def _text(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    dropout: float,
    window: int | None,
    cap: float | None,
) -> Tensor:
    """One text's, [H, P, W] -> [P, H, W]."""
    heads, length, _ = query.shape
    if cap is None and (window is None or length <= window):
        out: Tensor = F.scaled_dot_product_attention(
            query[None], key[None], value[None], dropout_p=dropout, is_causal=True, scale=scale
        )
        return out[0].transpose(0, 1)
    places = torch.arange(length, device=query.device)

    def near(at: slice) -> Tensor:
        apart = places[at, None] - places
        return ((apart >= 0) & (apart < (window or length)))[None]

    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    if cap is None:
        mixed = attend_masked(q, k, v, near, scale, dropout)
    else:
        some = partial(_capped, scale=scale, dropout=dropout, cap=cap)
        mixed = in_parts(some, near, [q], [k, v], heads * length)
    return mixed.view(length, heads, -1)


def _capped(
    visible: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    dropout: float,
    cap: float,
) -> Tensor:
    """With a soft cap of the scores: query [1, Q, H, W], key and value [1, S, H, W] ->
    [1, Q, H·W], where `visible` [1, Q, S] is true."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    scores = query @ key.mT * ((scale or query.shape[-1] ** -0.5) / cap)
    scores = (scores.tanh() * cap).masked_fill(~visible[:, None], -torch.inf)
    wide = torch.promote_types(query.dtype, torch.float32)
    shares = F.dropout(scores.softmax(-1, dtype=wide).to(query.dtype), dropout)
    return (shares @ value).transpose(1, 2).flatten(2)
