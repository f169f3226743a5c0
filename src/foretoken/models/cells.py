"""Where a cache's keys and values lie: in each layer, a row of cells for each slot.

Each head's cells begin on a page of their own, so that any run of a slot's cells can be given back
(`memory`). Cells that were given back are zeros.

Legend: K key/value heads, W numbers of a head in a cell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from foretoken.models.memory import PAGE, Memory


class Stored(NamedTuple):
    """What is stored of a token: K heads of W numbers; window: see `KVShape`."""

    heads: int
    width: int
    window: int | None


class Run(NamedTuple):
    """A slot's cells from the first token to `end`; layers with a window have those from `start`
    on."""

    start: int
    end: int


class _Part(NamedTuple):
    """The keys or the values of a layer: a row of `size` bytes for each slot, from `start` on.

    tensor: [slots, K, cells, W]. cell, head: bytes of a cell of one head, and of all of its cells.
    """

    tensor: Tensor
    start: int
    size: int
    cell: int
    head: int
    windowed: bool

    def pages(self, cells: int) -> int:
        """Bytes of the pages that this many neighbouring cells of each head stand on."""
        return self.tensor.shape[1] * -(-cells * self.cell // PAGE) * PAGE

    def of(self, run: Run) -> slice:
        return slice(run.start if self.windowed else 0, run.end)

    def heads(self, slot: int) -> Iterator[int]:
        """Where the first cell of each head of a slot stands."""
        first = self.start + slot * self.size
        return iter(range(first, first + self.size, self.head))


class Cells:
    """step: after how many cells one begins with a page again, in every layer."""

    def __init__(
        self,
        stored: Seq[Stored],
        slots: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Rows of at least `length` cells. Raises `MemoryError`, with the bytes, where these are
        not there."""
        self._itemsize = dtype.itemsize
        self.step = max(self._page(one.width) for one in stored)
        heads = [self._count(length, one.width) * one.width * self._itemsize for one in stored]
        rows = [one.heads * head for one, head in zip(stored, heads, strict=True)]
        self._memory = Memory(slots * sum(rows), device)
        self._parts: list[_Part] = []
        start = 0
        for one, head, row in zip(stored, heads, rows, strict=True):
            data = self._memory.data[start : start + slots * row].view(dtype)
            cell = one.width * self._itemsize
            data = data.view(slots, one.heads, head // cell, one.width)
            self._parts.append(_Part(data, start, row, cell, head, one.window is not None))
            start += slots * row
        kinds = [(part.tensor.shape[1], part.cell, part.windowed) for part in self._parts]
        counts, of_kind = Counter(kinds), dict(zip(kinds, self._parts, strict=True))
        self._alike = [(part, counts[kind]) for kind, part in of_kind.items()]
        self.tensors = [part.tensor for part in self._parts]
        self._stacks = self._stacked()

    def _stacked(self) -> list[Tensor]:
        """[parts, slots, K, cells, W] the parts of one shape that lie one after the other: what
        touches a few cells of each takes microseconds on the whole, and as many on a part."""
        stacks = []
        for _, neighbours in groupby(self._parts, lambda part: part.tensor.shape):
            parts = list(neighbours)
            first, shape = parts[0], parts[0].tensor.shape
            end = first.start + len(parts) * first.tensor.shape[0] * first.size
            data = self._memory.data[first.start : end].view(first.tensor.dtype)
            stacks.append(data.view(len(parts), *shape))
        return stacks

    def _count(self, length: int, width: int) -> int:
        step = self._page(width)
        return -(-length // step) * step

    def _page(self, width: int) -> int:
        """After how many cells of this width one begins with a page again."""
        return PAGE // math.gcd(PAGE, width * self._itemsize)

    @property
    def lazy(self) -> bool:
        """Whether bytes are taken when they are filled, and not all from the beginning."""
        return self._memory.lazy

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return len(self._memory.data)

    @property
    def row_bytes(self) -> int:
        """Of a slot."""
        return sum(part.size for part in self._parts)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return sum(part.tensor.shape[1] * part.cell for part in self._parts)

    def page_bytes(self, cells: int, windowed: int, padded: bool) -> int:
        """Bytes of the pages that neighbouring cells of a slot stand on, in layers with a window
        so many, and that of the padding's cell, if it was written."""
        return sum(
            count * (part.pages(windowed if part.windowed else cells) + part.pages(padded))
            for part, count in self._alike
        )

    def clear(self, slot: int) -> None:
        for part in self._parts:
            self._clear(part, slot)

    def _clear(self, part: _Part, slot: int) -> None:
        start = part.start + slot * part.size
        self._memory.clear(start, start + part.size)

    def zero(self, slot: int, length: int) -> None:
        """Write zeros to the first cells, whose pages stay."""
        for stack in self._stacks:
            stack[:, slot, :, :length] = 0

    def clear_passed(self, slot: int, run: Run) -> None:
        """Clear these cells, of whole pages, where there is a window; none, if the run is empty."""
        for part in self._parts if run.start < run.end else ():
            if part.windowed:
                for head in part.heads(slot):
                    start, end = (head + place * part.cell for place in run)
                    self._memory.clear(start, end)

    def clear_after(self, slot: int, length: int) -> None:
        """Clear all but the first cells."""
        end = -(-length // self.step) * self.step
        for stack in self._stacks:
            stack[:, slot, :, length:end] = 0
        for part in self._parts:
            kept = end * part.cell
            for head in part.heads(slot) if kept < part.head else ():
                self._memory.clear(head + kept, head + part.head)

    def copy(self, source: int, target: int, run: Run) -> None:
        for part in self._parts:
            cells = part.of(run)
            part.tensor[target, :, cells] = part.tensor[source, :, cells]

    def exchange(self, one: int, its: Run, other: int, others: Run) -> None:
        """Swap two slots' runs. What is beyond both stays: pages that are given back and written
        again cost more than the copies."""
        for part in self._parts:
            mine, theirs = part.of(its), part.of(others)
            kept = part.tensor[one, :, mine].clone()
            part.tensor[one, :, theirs] = part.tensor[other, :, theirs]
            part.tensor[other, :, mine] = kept

    def move(self, slots: int | Tensor, source: int | Tensor, target: int | Tensor) -> None:
        """Copy a place to another in each of these slots."""
        for stack in self._stacks:
            stack[:, slots, :, target] = stack[:, slots, :, source]
