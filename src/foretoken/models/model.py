"""What a causal language model offers to the targets and drafters built on it.

Legend: B rows, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from foretoken.access import Pass
from foretoken.models.budget import CacheBudget
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed

Output = Pass
"""logits [B, T, V] (or [B, 1, V] where the feed asks for the last place only, or None where it
wants none); hidden: layer -> [B, T, D]."""


@runtime_checkable
class CausalLM(Protocol):
    """One model without a cache: the cache is passed in.

    bytes_read: of the matrices that a pass over one token reads, as they lie in memory. source: the
    folder or the loaded transformers model that its weights are from, None where that isn't known.
    """

    vocab_size: int
    max_length: int
    width: int
    layers: int
    kv_heads: int
    head_dim: int
    parameters: int
    bytes_read: int
    dtype: torch.dtype
    device: torch.device
    levels: frozenset[str]
    backend: str
    eos_ids: frozenset[int]

    @property
    def source(self) -> Any: ...

    def new_cache(
        self, slots: int, max_length: int, *, spare: int = 0, budget: CacheBudget | None = None
    ) -> KVCache:
        """An empty cache for texts of `max_length` tokens, with `spare` cells after them; its bytes
        count against the budget."""
        ...

    def forward(self, feed: Feed, cache: KVCache, hidden: Seq[int] = ()) -> Output:
        """One pass; its keys and values stand in the cache after each row's committed length."""
        ...

    def embed(self, tokens: Tensor) -> Tensor: ...

    def head(self, states: Tensor) -> Tensor: ...


def eos_ids(config: Any) -> frozenset[int]:
    """End-of-text ids of a model or generation configuration, or of a tokenizer."""
    ids = getattr(config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
