"""The parts of a native decoder layer, and the protocol of what runs all layers at once.

Legend: B rows, T tokens, D width, H query heads, K key/value heads, W head width, F feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from foretoken.models.cache import KV, KVCache
from foretoken.models.feed import Feed
from foretoken.models.native.norm import Norm

Linear = Callable[[Tensor], Tensor]
"""[..., in] -> [..., out]"""

MakeLinear = Callable[[Tensor, Tensor | None], Linear]
"""(weight [out, in], bias [out] or None) -> Linear; it may take the weight over."""

Mix = Callable[[Tensor, KV, Feed], Tensor]
"""Queries, keys and values [B, T, H + 2K, W], a layer's cache, the feed -> [B, T, H·W]."""


class Embedding(Protocol):
    """Token ids [..., T] -> their embeddings [..., T, D]. nbytes: of the table."""

    nbytes: int

    def __call__(self, tokens: Tensor, /) -> Tensor: ...


class EmbeddingTable:
    """An embedding from a table [V, D]."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.nbytes = table, table.nbytes

    def __call__(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.table)


class Runner(Protocol):
    """Runs all layers in one call, as backends do that fuse more than one product."""

    def prepare(self, cache: KVCache) -> None:
        """Get ready for passes over this cache."""
        ...

    def __call__(self, states: Tensor, feed: Feed, cache: KVCache) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        ...


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
"""What a feed-forward's gate may go through, by transformers' names."""


@dataclass(slots=True)
class Layer:
    """One decoder layer. qkv: D -> (H + 2K)·W; rope: which of the model's rotary tables turns
    queries and keys; window: how many tokens it looks back, itself included; mix: the attention
    itself; gate_up: D -> 2F; activation: one of `ACTIVATIONS`. attention_out_norm, mlp_out_norm: of
    what a sub-layer adds to the states."""

    attention_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rope: int
    window: int | None
    mix: Mix
    out: Linear
    attention_out_norm: Norm | None
    mlp_norm: Norm
    gate_up: Linear
    activation: str
    down: Linear
    mlp_out_norm: Norm | None


@dataclass(slots=True)
class Shape:
    """The numbers that the forward needs. logit_cap: logits l become cap · tanh(l / cap)."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_length: int
    embedding_scale: float = 1.0
    logit_cap: float | None = None
