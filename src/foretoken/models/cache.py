"""The key/value cache: one preallocated tensor with a slot for each sequence.

A pass writes after the committed length; `commit` compacts the accepted path in one gather for
all layers and forgets the rest, so decoding never copies the history. Active slots are always the
first ones (a hole left by a finished sequence is filled by the last), so that a batch's attention
reads a view.

Legend: L layers, B rows, K key/value heads, T tokens of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from copy import copy

import torch
import torch.nn.functional as F

from foretoken.errors import ForetokenError, shown


class KVCache:
    """`data` [layers, 2, slots, kv_heads, length, head_dim] and each slot's committed length."""

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        max_length: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        positions: int | None = None,
    ) -> None:
        """`positions`: how many the model's position embedding knows (padding stays below it)."""
        # One more cell: where the padding of a ragged pass may be written.
        shape = (layers, 2, slots, kv_heads, max_length + 1, head_dim)
        try:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        except (RuntimeError, MemoryError, TypeError) as error:  # out of memory, or of 64 bits
            size = min(math.prod(shape), 10**30) * dtype.itemsize / 2**30
            raise ForetokenError(
                f"The cache of {shown(slots)} sequences of {shown(max_length)} positions needs "
                f"{size:.1f} GiB, which is not there; lower max_model_len or max_num_seqs."
            ) from error
        self.layer = [self.data[i] for i in range(layers)]
        self.max_length = max_length
        self.positions = positions or max_length
        self.lengths = [0] * slots
        self._written = [0] * slots
        self._slots: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Slots that no sequence owns."""
        return len(self.lengths) - len(self._slots)

    def acquire(self, owner: int) -> int:
        """Give `owner` the next slot, zeroed: a NaN left there poisons even masked places."""
        slot = len(self._slots)
        if slot == len(self.lengths):
            raise ForetokenError(
                f"All {slot} cache slots are taken; raise max_num_seqs or send fewer at a time."
            )
        self._slots[owner] = slot
        self.data[:, :, slot, :, : self._written[slot]] = 0
        self.lengths[slot] = self._written[slot] = 0
        return slot

    def slot(self, owner: int) -> int:
        return self._slots[owner]

    def owns(self, owner: int) -> bool:
        return owner in self._slots

    def release(self, owner: int) -> None:
        """Free the owner's slot, if it has one, and move the last active one into the hole."""
        hole = self._slots.pop(owner, None)
        last = len(self._slots)
        if hole is None or hole == last:
            return
        mover = next(o for o, slot in self._slots.items() if slot == last)
        self.copy(last, hole, self.lengths[last])
        self._slots[mover] = hole

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]
        self.lengths[target] = length
        self._written[target] = max(self._written[target], length)

    def grown(self, rows: int, length: int, more: int) -> KVCache:
        """A copy of the first rows' first `length` places, with room for `more` after them. Each
        layer is a separate tensor, so that gradients pass through what is written there."""
        cache = copy(self)
        cache.max_length = length + more
        cache.layer = [
            F.pad(layer[:, :rows, :, :length], (0, 0, 0, more + 1)) for layer in self.layer
        ]
        return cache

    def reserve(self, slots: Seq[int], counts: Seq[int]) -> None:
        """Check that this many more tokens fit after each slot's committed length."""
        widest = max(counts)
        for slot, count in zip(slots, counts, strict=True):
            start = self.lengths[slot]
            if start + count > self.max_length:
                raise ForetokenError(
                    f"A pass of {count} tokens after {start} exceeds the cache of "
                    f"{self.max_length} positions; raise max_model_len or shorten the prompt."
                )
            self._written[slot] = max(self._written[slot], start + widest)

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
            rows, source, target = torch.tensor(moves, device=self.data.device).T
            self.data[:, :, rows, :, target] = self.data[:, :, rows, :, source]
