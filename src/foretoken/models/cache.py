"""The key/value cache: a row for each sequence and layer, as long as the longest text.

Its memory is there when it is written (`memory`), so the rows may be long and many; what is in them
counts, and a budget says how much that may become. A pass writes after the committed length;
`commit` compacts the accepted path and forgets the rest, so decoding never copies the history.
Active slots are always the first ones (a hole left by a finished sequence is filled by the last),
so that a batch's attention reads a view. A layer that looks back over a window keeps that window.

Legend: B rows, K key/value heads, T tokens of a pass, W width of a head's keys, W' of its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from copy import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.models.budget import CacheBudget
from foretoken.models.memory import PAGE, Memory

_HALF_MOST = 65504.0


class KVShape(NamedTuple):
    """What one layer stores of a token: K heads, W and W' numbers each. window: how many tokens
    the layer looks back, itself included; None for all."""

    heads: int
    key_width: int
    value_width: int
    window: int | None = None


class KV(NamedTuple):
    """One layer's keys [slots, K, cells, W] and values [slots, K, cells, W']."""

    keys: Tensor
    values: Tensor


def as_stored(new: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values as they are stored. What float16 has no number for becomes its largest: an
    infinity would reach those that don't see it, as 0 · inf is NaN."""
    if dtype == torch.float16 != new.dtype:
        new = new.clamp(-_HALF_MOST, _HALF_MOST)
    return new.to(dtype)


def alike(layers: int, heads: int, width: int) -> list[KVShape]:
    """The shapes of layers that all store the same."""
    return [KVShape(heads, width, width)] * layers


class _Part(NamedTuple):
    """The keys or the values of a layer: a row of `size` bytes for each slot, from `start` on.

    tensor: [slots, K, cells, W]. cell: bytes of a cell of one head."""

    tensor: Tensor
    start: int
    size: int
    cell: int
    window: int | None

    def pages(self, cells: int) -> int:
        """Bytes of the pages that this many neighbouring cells of each head stand on."""
        return self.tensor.shape[1] * -(-cells * self.cell // PAGE) * PAGE


_TRIMMED = 256
"""Cells that a window gives back at a time."""


class KVCache:
    """`layer`: each layer's keys and values. lengths: committed, of each slot."""

    def __init__(
        self,
        shapes: Seq[KVShape],
        slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        spare: int = 0,
        positions: int | None = None,
        budget: CacheBudget | None = None,
    ) -> None:
        """A row holds texts of `max_length` tokens, and `spare` cells for what may come after them
        in a pass or be taken back. `positions`: how many the model's position embedding knows
        (padding stays below it). dtype: of what is stored, unless the budget names another."""
        stored = None if budget is None else budget.dtype
        self.shapes, self.dtype, self.device = list(shapes), stored or dtype, device
        self.max_length, self.spare = max_length + spare, spare
        self.positions = positions or self.max_length
        widths = {width for s in shapes for width in (s.key_width, s.value_width)}
        self._step = max(map(self._page, widths))
        self._window = max((s.window for s in shapes if s.window), default=0)
        self._trims = self._window > 0
        self._widest = 0 if budget is None else budget.widest
        self._lay_out(slots)
        self.lengths = [0] * slots
        self._slots: dict[int, int] = {}
        self._ends = [0] * slots  # cells before which something may be written
        self._starts = [0] * slots  # cells before which windows have given theirs back
        self._padded = [False] * slots  # whether the last cell was written
        self._budget = budget  # which is kept alive by the caches that joined it
        if budget is not None:
            budget.join(self)

    def _lay_out(self, slots: int) -> None:
        sizes = [(s, width) for s in self.shapes for width in (s.key_width, s.value_width)]
        rows = [s.heads * self._cells(w) * w * self.dtype.itemsize for s, w in sizes]
        size = slots * sum(rows)
        try:
            self._memory = Memory(size, self.device)
        except MemoryError as error:
            raise ForetokenError(
                f"The cache of {shown(slots)} sequences of {shown(self.max_length)} positions "
                f"needs {min(size, 10**30) / 2**30:.1f} GiB, which is not there; lower "
                "max_model_len or max_num_seqs."
            ) from error
        self._parts: list[_Part] = []
        start = 0
        for (shape, width), row in zip(sizes, rows, strict=True):
            data = self._memory.data[start : start + slots * row].view(self.dtype)
            data = data.view(slots, shape.heads, -1, width)
            cell = width * self.dtype.itemsize
            self._parts.append(_Part(data, start, row, cell, shape.window))
            start += slots * row
        tensors = [part.tensor for part in self._parts]
        self.layer = [KV(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]

    def _cells(self, width: int) -> int:
        """Cells of a row: one more than may be used, for the padding of ragged passes, and so many
        that each head begins on a page of its own."""
        step = self._page(width)
        return -(-(self.max_length + 1) // step) * step

    def _page(self, width: int) -> int:
        """After how many cells of this width one begins with a page again."""
        return PAGE // math.gcd(PAGE, width * self.dtype.itemsize)

    @property
    def lazy(self) -> bool:
        """Whether bytes are taken when they are filled, and not all from the beginning."""
        return self._memory.lazy

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return sum(part.tensor.shape[1] * part.cell for part in self._parts)

    def needs(self, tokens: int) -> int:
        """Bytes that a text of this length fills at most."""
        if not self._memory.lazy:
            return sum(part.size for part in self._parts)
        cells = min(tokens + self.spare, self.max_length)
        behind = self.spare + self._window + _TRIMMED + self._step
        kept = behind + max(self._widest, self.spare)
        return sum(
            part.pages(min(cells, kept) if part.window and self._trims else cells) + part.pages(1)
            for part in self._parts
        )

    @property
    def written(self) -> int:
        """Bytes that are filled now."""
        if not self._memory.lazy:
            return len(self._memory.data)
        return sum(
            part.pages(end - start if part.window else end) + part.pages(padded)
            for start, end, padded in zip(self._starts, self._ends, self._padded, strict=True)
            for part in self._parts
        )

    @property
    def free(self) -> int:
        """Slots that no sequence owns."""
        return len(self.lengths) - len(self._slots)

    def acquire(self, owner: int) -> int:
        """Give `owner` the next slot, all zeros: a NaN left there poisons even masked places."""
        slot = len(self._slots)
        if slot == len(self.lengths):
            raise ForetokenError(
                f"All {slot} cache slots are taken; raise max_num_seqs or send fewer at a time."
            )
        self._slots[owner] = slot
        return slot

    def slot(self, owner: int) -> int:
        return self._slots[owner]

    def owns(self, owner: int) -> bool:
        return owner in self._slots

    def release(self, owner: int) -> None:
        """Free the owner's slot, if it has one, and move the last active one into the hole."""
        hole = self._slots.pop(owner, None)
        last = len(self._slots)
        if hole is None:
            return
        self._clear(hole)
        if hole != last:
            mover = next(o for o, slot in self._slots.items() if slot == last)
            self.copy(last, hole, self.lengths[last])
            self._clear(last)
            self._slots[mover] = hole

    def _clear(self, slot: int) -> None:
        if self._ends[slot]:
            for part in self._parts:
                start = part.start + slot * part.size
                self._memory.clear(start, start + part.size)
        self.lengths[slot] = self._ends[slot] = self._starts[slot] = 0
        self._padded[slot] = False

    def keep_windows(self) -> None:
        """Keep what windows have passed, for drafters that read whole layers."""
        self._trims = False

    def _trim(self, slot: int) -> None:
        """Give back what the windows have passed, also for texts that are `spare` tokens shorter:
        so many may be taken back."""
        done = self._starts[slot]
        start = self.lengths[slot] - self.spare - self._window
        start -= start % self._step
        if start - done < _TRIMMED:
            return
        for part in self._parts:
            if part.window:
                first, each = part.start + slot * part.size, part.size // part.tensor.shape[1]
                for head in range(first, first + part.size, each):
                    self._memory.clear(head + done * part.cell, head + start * part.cell)
        self._starts[slot] = start

    def keeps(self, slot: int, length: int) -> bool:
        """Whether all that a text of this length needs of a slot is still there."""
        return length - self._window >= self._starts[slot] or not self._starts[slot]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for part in self._parts:
            first = self._starts[source] if part.window else 0
            tensor = part.tensor
            tensor[target, :, first:length] = tensor[source, :, first:length]
        self.lengths[target], self._starts[target] = length, self._starts[source]
        self._ends[target] = max(self._ends[target], length)

    def move(self, slot: int, source: int, target: int) -> None:
        """Copy one position of a slot to another."""
        for part in self._parts:
            part.tensor[slot, :, target] = part.tensor[slot, :, source]

    def grown(self, rows: int, length: int, more: int) -> KVCache:
        """A copy of the first rows' first `length` places, with room for `more` after them. Each
        layer's are separate tensors, so that gradients pass through what is written there."""
        cache = copy(self)
        cache.max_length = length + more
        cache.layer = [
            KV(*(F.pad(x[:rows, :, :length], (0, 0, 0, more + 1)) for x in layer))
            for layer in self.layer
        ]
        return cache

    def reserve(self, slots: Seq[int], counts: Seq[int]) -> None:
        """Check that this many more tokens fit after each slot's committed length. The padding of a
        pass goes to the last cell."""
        widest = max(counts)
        for slot, count in zip(slots, counts, strict=True):
            start = self.lengths[slot]
            if start + count > self.max_length:
                raise ForetokenError(
                    f"A pass of {count} tokens after {start} exceeds the cache of "
                    f"{self.max_length} positions; raise max_model_len or shorten the prompt."
                )
            self._ends[slot] = max(self._ends[slot], start + count)
            self._padded[slot] |= count < widest
            if self._trims and self._memory.lazy:
                self._trim(slot)

    def keep(self, slots: Seq[int], paths: Seq[Seq[int]]) -> None:
        """Commit the root and the accepted slots of the last pass, for each row.

        Position `length + s` holds slot s of the pass; afterwards the path stands in order.
        """
        moves: list[tuple[int, int, int]] = []
        for slot, path in zip(slots, paths, strict=True):
            start = self.lengths[slot]
            moves += [
                (slot, start + node, start + place)
                for place, node in enumerate(path, 1)
                if node != place
            ]
            self.lengths[slot] = start + 1 + len(path)
        if moves:
            rows, source, target = torch.tensor(moves, device=self.device).T
            for part in self._parts:
                part.tensor[rows, :, target] = part.tensor[rows, :, source]
