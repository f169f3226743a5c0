"""The target while a drafter is trained: its word on a batch, by its own forward, never stored."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.lesson import Lesson
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.model import CausalLM
from foretoken.train.batches import Rows


class Frozen:
    """A target that reads batches and learns nothing. nodes: the most that serving drafts."""

    def __init__(self, model: CausalLM, nodes: int = 64) -> None:
        self.model, self._nodes = model, nodes
        self._cache: KVCache | None = None

    def lesson(self, rows: Rows, layers: Seq[int]) -> Lesson:
        """The batch on the target's device, with the states of these layers."""
        tokens, positions, records, weight, room = (x.to(self.model.device) for x in rows)
        same = records[:, :, None] == records[:, None, :]
        batch, length = tokens.shape
        feed = Feed(
            tokens, positions, same.tril(), list(range(batch)), [0] * batch, length + 1,
            logits=False,
        )  # fmt: skip
        with torch.no_grad():
            out = self.model.forward(feed, self._cache_of(batch, length), tuple(layers))
        hidden = {layer: states.to(self.dtype) for layer, states in out.hidden.items()}
        return Lesson(
            tokens, positions, records, weight, room.clamp(max=self._nodes), hidden, self.head,
            self.embed,
        )  # fmt: skip

    @property
    def dtype(self) -> torch.dtype:
        """What states come in, and drafters are trained in; matrices may run in half precision."""
        return torch.float64 if self.model.dtype == torch.float64 else torch.float32

    def head(self, states: Tensor) -> Tensor:
        """Logits of normed states of any dtype."""
        return self.model.head(states.to(self.model.dtype))

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of ids."""
        return self.model.embed(tokens).to(self.dtype)

    def _cache_of(self, rows: int, length: int) -> KVCache:
        cache = self._cache
        if cache is None or len(cache.lengths) < rows or cache.max_length < length:
            cache = self._cache = self.model.new_cache(rows, length)
        return cache
