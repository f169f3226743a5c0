"""The target while a drafter is trained: its states are computed for each batch, never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.model import CausalLM, Output
from foretoken.train.batches import Rows
from foretoken.trainable.lesson import Append, KeysAndValues, Lesson


class FrozenTarget:
    """A target that reads batches and learns nothing. nodes: the most nodes of a draft when
    serving; temperature: the one that the texts were written at; weigh: changes the tokens'
    weights of a lesson."""

    def __init__(
        self,
        model: CausalLM,
        nodes: int = 64,
        temperature: float = 0.0,
        weigh: Callable[[Lesson], Tensor] | None = None,
    ) -> None:
        self.model, self._nodes, self._temperature = model, nodes, temperature
        self._weigh = weigh
        self._cache: KVCache | None = None
        self._last: Feed | None = None  # whose keys and values are in the cache

    def lesson(self, rows: Rows, layers: Seq[int]) -> Lesson:
        """The batch on the target's device, with the states after these layers (as in `Wants`)."""
        tokens, positions, records = (x.to(self.model.device) for x in rows[:3])
        same = records[:, :, None] == records[:, None, :]
        batch, length = tokens.shape
        feed = Feed(
            tokens,
            positions,
            same.tril(),
            list(range(batch)),
            [0] * batch,
            length + 1,
            logits=False,
        )
        hidden = self._read(feed, tuple(layers)).hidden
        return self.lesson_of(rows, hidden, partial(self._append, feed), partial(self._kv, feed))

    def lesson_of(
        self, rows: Rows, hidden: Mapping[int, Tensor], append: Append, kv: KeysAndValues
    ) -> Lesson:
        """The batch with these states of any dtype and device, and what else is read of the
        target's pass."""
        device = self.model.device
        tokens, positions, records, weight, max_nodes = (x.to(device) for x in rows[:5])
        lesson = Lesson(
            tokens,
            positions,
            records,
            weight,
            max_nodes.clamp(max=self._nodes),
            {layer: states.to(device, self.dtype) for layer, states in hidden.items()},
            self.head,
            self.embed,
            append,
            kv,
            self._temperature,
        )
        return replace(lesson, weight=self._weigh(lesson)) if self._weigh else lesson

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states and of drafters' weights; products may run in half precision."""
        return torch.float64 if self.model.dtype == torch.float64 else torch.float32

    def head(self, states: Tensor) -> Tensor:
        """Logits of normed states of any dtype."""
        return self.model.head(states.to(self.model.dtype))

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of ids."""
        return self.model.embed(tokens).to(self.dtype)

    def _read(self, feed: Feed, layers: Seq[int]) -> Output:
        """One pass over the text, which puts its keys and values into the cache."""
        cache = self._cache_of(*feed.tokens.shape)
        with torch.no_grad():
            self._last, out = feed, self.model.forward(feed, cache, layers)
        return out

    def _append(self, feed: Feed, embeddings: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """See `lesson.Append`; the appended tokens attend to keys and values of the text's pass."""
        batch, length = feed.tokens.shape
        count = embeddings.shape[1]
        cache = self._cache_with(feed).grown(batch, length, count)
        after = Feed(
            torch.zeros_like(positions),
            positions,
            visible,
            feed.slots,
            [length] * batch,
            length + count + 1,
            logits=False,
            earlier=feed.positions,
            replaced=(torch.ones_like(visible[..., 0]), embeddings.to(self.model.dtype)),
        )
        with torch.autocast(positions.device.type, enabled=False):
            out = self.model.forward(after, cache, (-1,))
        return out.hidden[-1].to(self.dtype)

    def _kv(self, feed: Feed, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the text [B, K, T, W], valid until the next pass."""
        batch, length = feed.tokens.shape
        keys, values = self._cache_with(feed).layer[layer]
        return keys[:batch, :, :length].to(self.dtype), values[:batch, :, :length].to(self.dtype)

    def _cache_with(self, feed: Feed) -> KVCache:
        """The cache with the keys and values of this text."""
        if self._last is not feed:
            self._read(feed, ())
        return self._cache_of(*feed.tokens.shape)

    def _cache_of(self, rows: int, length: int) -> KVCache:
        cache = self._cache
        if cache is None or len(cache.lengths) < rows or cache.max_length < length:
            cache = self._cache = self.model.new_cache(rows, length)
        return cache
