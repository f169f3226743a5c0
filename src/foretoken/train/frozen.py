"""The target while a drafter is trained: its states are computed for each batch, never stored, and
only where something reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.model import CausalLM
from foretoken.train.batches import Rows
from foretoken.trainable.lesson import Append, KeysAndValues, Lesson, numbers_at_once

_PAIRS = 2**24
"""Pairs of tokens that a pass has a mask for on a CPU, beyond which a text is read in parts: its
memory doesn't grow with the square of a text's length."""


@dataclass(frozen=True, eq=False)
class _Text:
    """Packed rows, all [B, T]: `tokens`, `positions` and `records` of a lesson."""

    tokens: Tensor
    positions: Tensor
    records: Tensor

    def feeds(self) -> Iterator[Feed]:
        """The passes that read it, one after the other."""
        batch, length = self.tokens.shape
        pairs = numbers_at_once(self.tokens.device, _PAIRS)
        step = max(1, pairs // (batch * length))
        for first in range(0, length, step):
            now = slice(first, min(first + step, length))
            same = self.records[:, now, None] == self.records[:, None, : now.stop]
            yield Feed(
                self.tokens[:, now],
                self.positions[:, now],
                same.tril(first),
                list(range(batch)),
                [first] * batch,
                length + 1,
                logits=False,
                earlier=self.positions[:, :first] if first else None,
            )


class _States(Mapping[int, Tensor]):
    """Layer -> [B, T, D], which are all read as soon as one is taken: never where a small model
    learns from tokens alone, or is judged at temperature 0."""

    def __init__(self, layers: Iterable[int], read: Callable[[], Mapping[int, Tensor]]) -> None:
        self._layers, self.read = tuple(layers), cache(read)

    def __getitem__(self, layer: int) -> Tensor:
        return self.read()[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class FrozenTarget:
    """A target that reads batches and learns nothing. nodes: the most nodes of a draft when
    serving; temperature: the one that the texts were written at; weigh: changes the tokens'
    weights of a lesson; together: whether the target is shared out over the processes, each of
    which then has to run every pass."""

    def __init__(
        self,
        model: CausalLM,
        nodes: int = 64,
        temperature: float = 0.0,
        weigh: Callable[[Lesson], Tensor] | None = None,
        together: bool = False,
    ) -> None:
        self.model, self._nodes, self._temperature = model, nodes, temperature
        self._weigh, self.together = weigh, together
        self._cache: KVCache | None = None
        self._last: _Text | None = None  # whose keys and values are in the cache

    def lesson(self, rows: Rows, layers: Seq[int]) -> Lesson:
        """The batch on the target's device, with the states after these layers (as in `Wants`)."""
        text = _Text(*(x.to(self.model.device) for x in rows[:3]))
        hidden = _States(layers, partial(self._read, text, tuple(layers)))
        if self.together:
            hidden.read()
        append = partial(self._append, text, hidden)
        return self.lesson_of(rows, hidden, append, partial(self._kv, text, hidden))

    def lesson_of(
        self, rows: Rows, hidden: Mapping[int, Tensor], append: Append, kv: KeysAndValues
    ) -> Lesson:
        """The batch with these states, in the dtype of states and on the target's device, and what
        else is read of its pass."""
        device = self.model.device
        tokens, positions, records, weight, max_nodes = (x.to(device) for x in rows[:5])
        lesson = Lesson(
            tokens,
            positions,
            records,
            weight,
            max_nodes.clamp(max=self._nodes),
            hidden,
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
        """Logits of normed states of any dtype. Where gradients pass, the products run in the
        drafter's precision, as the smallest of them would be 0 in float16."""
        if states.requires_grad and torch.is_autocast_enabled(states.device.type):
            return self.model.head(states)
        with self._own_precision(states.device):
            return self.model.head(states.to(self.model.dtype))

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of ids."""
        return self.model.embed(tokens).to(self.dtype)

    def _read(self, text: _Text, layers: Seq[int]) -> dict[int, Tensor]:
        """[B, T, D] by layer; its keys and values are then in the cache."""
        cache = self._cache_of(*text.tokens.shape)
        with torch.no_grad(), self._own_precision(text.tokens.device):
            self._last = text
            read = [self.model.forward(feed, cache, layers).hidden for feed in text.feeds()]
            joined = {layer: torch.cat([part[layer] for part in read], 1) for layer in layers}
            return {layer: states.to(self.dtype) for layer, states in joined.items()}

    def _own_precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """A target in half precision runs in its own, which may be finer than that of the
        drafter's products."""
        half = self.model.dtype.itemsize == 2
        return torch.autocast(device.type, enabled=False) if half else nullcontext()

    def _append(
        self, text: _Text, hidden: _States, embeddings: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """See `lesson.Append`; the appended tokens attend to keys and values of the text's pass."""
        batch, length = text.tokens.shape
        count = embeddings.shape[1]
        cache = self._cache_with(text, hidden).grown(batch, length, count)
        after = Feed(
            torch.zeros_like(positions),
            positions,
            visible,
            list(range(batch)),
            [length] * batch,
            length + count + 1,
            logits=False,
            earlier=text.positions,
            replaced=(torch.ones_like(visible[..., 0]), embeddings.to(self.model.dtype)),
        )
        with torch.autocast(positions.device.type, enabled=False):
            out = self.model.forward(after, cache, (-1,))
        return out.hidden[-1].to(self.dtype)

    def _kv(self, text: _Text, hidden: _States, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the text [B, K, T, W], valid until the next pass."""
        batch, length = text.tokens.shape
        keys, values = self._cache_with(text, hidden).layer[layer]
        return keys[:batch, :, :length].to(self.dtype), values[:batch, :, :length].to(self.dtype)

    def _cache_with(self, text: _Text, hidden: _States) -> KVCache:
        """The cache with the keys and values of this text, by the pass that reads these states
        where that has run last."""
        hidden.read()
        if self._last is not text:
            self._read(text, ())
        return self._cache_of(*text.tokens.shape)

    def _cache_of(self, rows: int, length: int) -> KVCache:
        cache = self._cache
        if cache is None or len(cache.lengths) < rows or cache.max_length < length:
            cache = self._cache = self.model.new_cache(rows, length)
        return cache
