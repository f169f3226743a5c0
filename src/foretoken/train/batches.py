"""Packs records into batches, each a function of seed and number alone: resuming needs no state.

Records are drawn at random, and the last of a row is cut at its end. Or they come in epochs: then
every record is in one row, whole. The rows of each epoch come in an order of its own, and records
of one length change places, so that a record has other neighbours, and the layout is computed once.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from foretoken.train.recipe import EPOCHS, RANDOM, Recipe
from foretoken.train.records import Ids, Records

_OPEN = 64  # rows that a record is tried in, so that packing takes a time linear in the records


class Rows(NamedTuple):
    """The tensors of a `Lesson` that come from the texts alone, each [B, T]. places: where a token
    stands in the records' tokens, -1 for padding."""

    tokens: Tensor
    positions: Tensor
    records: Tensor
    weight: Tensor
    max_nodes: Tensor
    places: Tensor


@dataclass(frozen=True)
class Batches:
    """Endless batches of `rows` rows of `length` tokens. prompt_weight: a prompt token's weight in
    the loss, where an answer's is 1. parts: where each source's records end; every source is drawn
    from equally often. order: one of `ORDERS`; in epochs, sources count by their size."""

    records: Records
    rows: int
    length: int
    seed: int
    prompt_weight: float = 0.0
    parts: Seq[int] = ()
    order: str = RANDOM
    _epochs: dict[int, list[list[int]]] = field(default_factory=dict, init=False, compare=False)
    """The rows of the last epoch that was asked for."""

    @classmethod
    def of(cls, parts: Seq[Records], recipe: Recipe, seed: int) -> Batches:
        """Batches from several sources."""
        ends = np.cumsum([len(part) for part in parts]).tolist()
        sizes = recipe.rows, recipe.length
        return cls(joined(parts), *sizes, seed, recipe.prompt_weight, ends, recipe.order)

    def batch(self, number: int) -> Rows:
        """The batch of that number."""
        layout = [self._row(number * self.rows + i) for i in range(self.rows)]
        return collate(self.records, layout, self.length, self.prompt_weight)

    def _row(self, number: int) -> list[int]:
        """The numbers of the records in a row."""
        if self.order == EPOCHS:
            epoch, at = divmod(number, len(self._packed))
            return self._rows_of(epoch)[at]
        rng = np.random.default_rng((self.seed, number))
        row: list[int] = []
        free = self.length
        while free > 0:
            row.append(self._draw_record(rng))
            free -= int(self.records.starts[row[-1] + 1] - self.records.starts[row[-1]])
        return row

    def _rows_of(self, epoch: int) -> list[list[int]]:
        """The rows of an epoch, which follow from the seed and its number."""
        if epoch not in self._epochs:
            rng = np.random.default_rng((self.seed, epoch))
            order = rng.permutation(len(self._packed))
            flat = np.concatenate([np.array(row) for row in self._packed])
            sizes, exchanged = self._sizes[flat], flat.copy()
            exchanged[sizes.argsort(kind="stable")] = flat[
                np.lexsort((rng.random(len(flat)), sizes))
            ]
            ends = np.cumsum([len(row) for row in self._packed])[:-1]
            rows = [row.tolist() for row in np.split(exchanged, ends)]
            self._epochs.clear()
            self._epochs[epoch] = [rows[i] for i in order]
        return self._epochs[epoch]

    @cached_property
    def _sizes(self) -> Ids:
        """[N] places that each record takes in a row."""
        return np.minimum(np.diff(self.records.starts), self.length)

    @cached_property
    def _packed(self) -> list[list[int]]:
        """Every record once, in the first of the open rows that has room for all of it."""
        packed: list[list[int]] = []
        room: dict[int, int] = {}  # of the open rows
        for record in np.random.default_rng(self.seed).permutation(len(self.records)).tolist():
            size = int(self._sizes[record])
            row = next((row for row, free in room.items() if free >= size), len(packed))
            if row == len(packed):
                packed.append([])
                room[row] = self.length
                if len(room) > _OPEN:
                    del room[min(room, key=room.__getitem__)]
            packed[row].append(record)
            if row in room:
                room[row] -= size
        return packed

    def _draw_record(self, rng: np.random.Generator) -> int:
        if len(self.parts) < 2:
            return int(rng.integers(len(self.records)))
        part = int(rng.integers(len(self.parts)))
        return int(rng.integers(self.parts[part - 1] if part else 0, self.parts[part]))


def joined(parts: Seq[Records]) -> Records:
    """The records that batches of several sources are made of."""
    return parts[0] if len(parts) == 1 else Records.joined(parts)


def whole(records: Records, rows: int) -> Iterator[Rows]:
    """Every record once, uncut, one in each row; records of similar length together."""
    sizes = np.diff(records.starts)
    order = np.argsort(sizes, kind="stable")
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        yield collate(records, [[int(i)] for i in chosen], int(sizes[chosen].max()), 0.0)


def collate(records: Records, layout: Seq[Seq[int]], length: int, prompt_weight: float) -> Rows:
    """Rows of the given records, one after the other, cut or padded to `length`."""
    shape = (len(layout), length)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    owner, max_nodes = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    weight, places = np.zeros(shape, np.float32), np.full(shape, -1, np.int64)
    for b, row in enumerate(layout):
        at = 0
        for place, i in enumerate(row):
            start, answer, end = records.starts[i], records.answers[i], records.starts[i + 1]
            size = min(int(end - start), length - at)
            span, head = slice(at, at + size), min(int(answer - start), size)
            tokens[b, span] = records.tokens[start : start + size]
            positions[b, span] = np.arange(size)
            owner[b, span] = place
            places[b, span] = start + np.arange(size)
            weight[b, at : at + head] = prompt_weight
            weight[b, at + head : at + size] = 1.0
            if head and size > head:  # roots: from the prompt's last token on
                written = np.arange(size - head)
                max_nodes[b, at + head - 1 : at + size - 1] = records.limit - written - 1
            at += size
    return Rows(*map(torch.from_numpy, (tokens, positions, owner, weight, max_nodes, places)))
