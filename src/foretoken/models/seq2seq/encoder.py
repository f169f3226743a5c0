"""The encoder of an encoder–decoder, which reads sources, and its loan to a draft model.

A shallow decoder that was trained on the target's encoder has the same encoder in its own files. It
then takes the states that the target has computed of a source, instead of reading it again.

Legend: B sources, S tokens of the longest, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foretoken.models.checkpoint import Checkpoint
from foretoken.models.feed import Feed
from foretoken.models.native.layer import Embedding
from foretoken.models.seq2seq.stack import Stack


class Origin(NamedTuple):
    """What an encoder was made of. settings: all numbers and names that its states depend on, and
    how it runs. tables: the names that its embedding may be stored as, the first that is there.
    tensors: the names of its others. folder: whose they are, None where that isn't known."""

    settings: tuple[object, ...]
    tables: tuple[str, ...]
    tensors: tuple[str, ...]
    folder: Path | None

    def makes(self, other: Origin) -> bool:
        """Whether both make the same states, bit for bit: by the same settings, of files that hold
        the same tensors."""
        if self.folder is None or other.folder is None or self[:-1] != other[:-1]:
            return False
        here, there = Checkpoint(self.folder), Checkpoint(other.folder)
        tables = [next((n for n in self.tables if _has(c, n)), "") for c in (here, there)]
        pairs = [(name, name) for name in self.tensors]
        return all(_agree(here, one, there, two) for one, two in [*pairs, (tables[0], tables[1])])


def _has(stored: Checkpoint, name: str) -> bool:
    try:
        stored.name_of(name)
    except KeyError:
        return False
    return True


def _agree(here: Checkpoint, name: str, there: Checkpoint, other: str) -> bool:
    """Whether two stored tensors are the same, or neither is there."""
    if not _has(here, name) or not _has(there, other):
        return _has(here, name) == _has(there, other)
    one, two = here(name), there(other)
    return one.dtype == two.dtype and torch.equal(one, two)


class Reader(Protocol):
    """What gives the encoder's states of sources. origin: what it was made of."""

    origin: Origin

    def read(self, feed: Feed, sources: Seq[Seq[int]]) -> Tensor:
        """[B, S, D] of whole sources, which are the feed's tokens."""

    def lend(self) -> Reader:
        """The same for a draft model."""


class Encoder:
    """A `Reader` that runs the layers. Once lent, it keeps the states of its last read, until the
    next: a drafter follows each of the target's steps."""

    def __init__(self, embedding: Embedding, scale: float, stack: Stack, origin: Origin) -> None:
        """scale: what embeddings are multiplied by."""
        self.origin = origin
        self._embedding, self._scale, self._stack = embedding, scale, stack
        self._lent, self._last = False, dict[tuple[int, ...], Tensor]()

    def read(self, feed: Feed, sources: Seq[Seq[int]]) -> Tensor:
        states = self.run(feed, sources)
        if self._lent:
            rows = zip(sources, states, strict=True)
            self._last = {tuple(source): row[: len(source)] for source, row in rows}
        return states

    def run(self, feed: Feed, sources: Seq[Seq[int]]) -> Tensor:
        """As `read`, and nothing is kept."""
        embedded = self._embedding(feed.tokens) * self._scale
        return self._stack.encode(embedded, feed.positions, [len(source) for source in sources])

    def last(self, source: Seq[int]) -> Tensor | None:
        """[tokens, D] of a source, where the last read was of it too."""
        return self._last.get(tuple(source))

    def lend(self) -> Reader:
        self._lent = True
        return Lent(self)


class Lent:
    """A `Reader` for a draft model with the target's encoder: it hands over what that has just
    computed, and runs it where one of the sources isn't among that."""

    def __init__(self, encoder: Encoder) -> None:
        self.origin, self._encoder = encoder.origin, encoder

    def read(self, feed: Feed, sources: Seq[Seq[int]]) -> Tensor:
        known = [states for s in sources if (states := self._encoder.last(s)) is not None]
        if len(known) < len(sources):
            return self._encoder.run(feed, sources)
        return pad_sequence(known, batch_first=True)

    def lend(self) -> Reader:
        return self._encoder.lend()
