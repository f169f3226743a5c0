"""The layers of encoder and decoder.

Both are the same stack: sub-layers with a norm before or after each, which are attention to the
text itself, in a decoder attention to the source, and a feed-forward. Where positions enter differs
by family: with the embeddings, or as a bias on the scores (Raffel et al. 2020, section 2.1).

Legend: B rows, T tokens, S tokens of the longest source, L cache length, D width, H heads, W head
width, F feed-forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.cache import KV
from foretoken.models.feed import Feed
from foretoken.models.native.attention import attend, write
from foretoken.models.native.layer import Linear
from foretoken.models.native.norm import Norm
from foretoken.models.seq2seq.cache import SourcedCache, padding_mask

Around = Callable[[Tensor, Norm, Callable[[Tensor], Tensor]], Tensor]
"""States, a norm, a sub-layer -> the states after it."""


def norm_before(states: Tensor, norm: Norm, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    return states + sublayer(norm(states))


def norm_after(states: Tensor, norm: Norm, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    return norm(states + sublayer(states))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
}
"""By transformers' names."""


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """[..., 2F] -> [..., F]: the first half, activated, times the second."""

    def gate(states: Tensor) -> Tensor:
        first, second = states.chunk(2, -1)
        return activation(first) * second

    return gate


@dataclass(slots=True)
class Attention:
    """norm: before or after it. inward: D -> 3·H·W, or of cross-attention D -> H·W."""

    norm: Norm
    inward: Linear
    out: Linear


@dataclass(slots=True)
class FeedForward:
    """up: D -> F, or 2F of which `activate` makes F."""

    norm: Norm
    up: Linear
    activate: Callable[[Tensor], Tensor]
    down: Linear

    def __call__(self, states: Tensor) -> Tensor:
        return self.down(self.activate(self.up(states)))


class RelativeBias:
    """What T5 adds to the score of a query at i and a key at j: a number for each head and each
    bucket of distances j - i. Half of the buckets are single distances, the other half grow by a
    factor up to `farthest`. both: whether keys after the query have buckets of their own."""

    def __init__(self, table: Tensor, farthest: int, both: bool) -> None:
        """table: [buckets, H]."""
        distances = torch.arange(-farthest, farthest + 1, device=table.device)
        self._farthest = farthest
        self._of_distance = table[_buckets(distances, len(table), farthest, both)]

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions [B, T] and [B, L] -> [B, H, T, L]."""
        apart = (keys[:, None] - queries[..., None]).clamp(-self._farthest, self._farthest)
        return self._of_distance[apart + self._farthest].permute(0, 3, 1, 2).contiguous()


def _buckets(distances: Tensor, count: int, farthest: int, both: bool) -> Tensor:
    """The bucket of each distance, by the formula of Mesh TensorFlow that T5 was trained with."""
    first = torch.zeros_like(distances)
    if both:
        count //= 2
        first = (distances > 0) * count
        away = distances.abs()
    else:
        away = (-distances).clamp(min=0)
    single = count // 2
    growth = (away.clamp(min=1).float() / single).log() / math.log(farthest / single)
    grown = (single + (growth * (count - single)).long()).clamp(max=count - 1)
    return first + torch.where(away < single, away, grown)


@dataclass(slots=True)
class Stack:
    """Encoder or decoder. enter: of embedded tokens [B, T, D] and positions [B, T], from which on
    states may be in a wider dtype until a norm takes them; cross: none in an encoder; leave: the
    last norm; scale: what scores are multiplied by."""

    enter: Callable[[Tensor, Tensor], Tensor]
    own: list[Attention]
    cross: list[Attention]
    mlp: list[FeedForward]
    leave: Norm
    around: Around
    bias: RelativeBias | None
    heads: int
    head_dim: int
    scale: float

    def encode(self, embedded: Tensor, positions: Tensor, lengths: Seq[int]) -> Tensor:
        """Sources [B, S, D] of these lengths, every token seeing all of its own -> [B, S, D]."""
        states = self.enter(embedded, positions)
        mask = padding_mask(lengths, embedded.dtype, states.device)
        if self.bias is not None:
            mask = mask + self.bias(positions, positions)
        for own, mlp in zip(self.own, self.mlp, strict=True):
            states = self.around(states, own.norm, partial(self._among, own, mask))
            states = self.around(states, mlp.norm, mlp)
        return self.leave(states)

    def _among(self, own: Attention, mask: Tensor, states: Tensor) -> Tensor:
        """The attention of all tokens to each other."""
        query, key, value = self._split(own.inward(states)).unbind(2)
        layer = KV(key.transpose(1, 2), value.transpose(1, 2))
        return own.out(_product(query, layer, mask, self.scale))

    def decode(self, embedded: Tensor, feed: Feed, cache: SourcedCache) -> Tensor:
        """One pass [B, T, D] -> [B, T, D], without the last norm."""
        states = self.enter(embedded, feed.positions)
        bias = None if self.bias is None else self.bias(feed.positions, feed.key_positions())
        mask = cache.source_mask(feed.slots, embedded.dtype)
        for i, (own, cross, mlp) in enumerate(zip(self.own, self.cross, self.mlp, strict=True)):
            appended = partial(self._appended, own, cache.layer[i], feed, bias)
            states = self.around(states, own.norm, appended)
            sourced = partial(self._sourced, cross, i, feed, cache, mask)
            states = self.around(states, cross.norm, sourced)
            states = self.around(states, mlp.norm, mlp)
        return states

    def _appended(
        self, own: Attention, layer: KV, feed: Feed, bias: Tensor | None, states: Tensor
    ) -> Tensor:
        """The attention of the pass's tokens to those before them, in the cache and in the pass."""
        qkv = self._split(own.inward(states))  # [B, T, 3, H, W]
        write(layer, qkv[:, :, 1:], feed)
        return own.out(attend(qkv[:, :, 0], layer, feed, self.scale, bias=bias))

    def _sourced(
        self,
        cross: Attention,
        index: int,
        feed: Feed,
        cache: SourcedCache,
        mask: Tensor | None,
        states: Tensor,
    ) -> Tensor:
        """The attention to each row's source. Rows that lie together are read where they lie."""
        query = self._split(cross.inward(states))[:, :, 0]  # [B, T, H, W]
        layer, lengths = cache.sources.layer[index], cache.source_lengths(feed.slots)
        if feed.aligned:
            cached = _cells(layer, slice(len(lengths)), max(lengths), states.dtype)
            return cross.out(_product(query, cached, mask, self.scale))
        rows = []
        for row, (slot, length) in enumerate(zip(feed.slots, lengths, strict=True)):
            cached = _cells(layer, slice(slot, slot + 1), length, states.dtype)
            rows.append(_product(query[row : row + 1], cached, None, self.scale))
        return cross.out(torch.cat(rows))

    def _split(self, states: Tensor) -> Tensor:
        """[B, T, n·H·W] -> [B, T, n, H, W]"""
        return states.view(*states.shape[:2], -1, self.heads, self.head_dim)


def _cells(layer: KV, slots: slice, length: int, dtype: torch.dtype) -> KV:
    """The first cells of some slots: views, where they are stored in this dtype."""
    return KV(*(part[slots, :, :length].to(dtype) for part in layer))


def _product(query: Tensor, layer: KV, mask: Tensor | None, scale: float) -> Tensor:
    """query [B, T, H, W] against keys and values [B, H, L, W] -> [B, T, H·W]."""
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), layer.keys, layer.values, attn_mask=mask, scale=scale
    )
    return out.transpose(1, 2).flatten(2)
