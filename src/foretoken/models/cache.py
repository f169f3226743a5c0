"""The key/value cache: a row for each sequence and layer, as long as the longest text.

Its memory is there when it is written (`memory`), so the rows may be long and many; what is in them
counts, and a budget says how much that may become. A pass writes after the committed length;
`commit` compacts the accepted path and forgets the rest, so decoding never copies the history.
Where a batch's attention reads a view, active slots are always the first ones (the last one fills a
hole); else a sequence stays in its slot. A layer that looks back over a window keeps that window.

A slot that nobody owns may be *warm*: it holds what a sequence left as it ended, until its
place or its memory is needed. A new sequence takes over the warm slot whose whole text its own goes
on from; of any other text that begins alike, warm or active, it copies what they have in common.

Legend: B rows, K key/value heads, T tokens of a pass, W width of a head's keys, W' of its values.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from copy import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.models.budget import CacheBudget
from foretoken.models.cells import Cells, Run, Stored
from foretoken.models.warm import Text

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


_TRIMMED = 256  # cells that a window gives back at a time


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
        together: bool = True,
    ) -> None:
        """A row holds texts of `max_length` tokens, and `spare` cells for what may come after them
        in a pass or be taken back. `positions`: how many the model's position embedding knows
        (padding stays below it). dtype: of what is stored, unless the budget names another.
        together: whether active slots are always the first ones."""
        stored = None if budget is None else budget.dtype
        self.shapes, self.dtype, self.device = list(shapes), stored or dtype, device
        self.max_length, self.spare = max_length + spare, spare
        self.positions = positions or self.max_length
        self._window = max((s.window for s in shapes if s.window), default=0)
        self._trims = self._window > 0
        self._together = together
        self._widest = 0 if budget is None else budget.widest
        self._cells = self._laid_out(slots)
        pairs = zip(self._cells.tensors[::2], self._cells.tensors[1::2], strict=True)
        self.layer = [KV(*pair) for pair in pairs]
        self.lengths = [0] * slots
        self._slots: dict[int, int] = {}
        self._idle = {*range(slots)}  # which nobody owns
        self._texts: dict[int, Text] = {}  # of active slots, where they share, and of warm ones
        self._ends = [0] * slots  # cells before which something may be written
        self._starts = [0] * slots  # cells before which windows have given theirs back
        self._padded = [False] * slots  # whether the last cell was written
        self._budget = budget  # which is kept alive by the caches that joined it
        if budget is not None:
            budget.join(self)

    def _laid_out(self, slots: int) -> Cells:
        """Rows of a cell more than may be used, for the padding of ragged passes."""
        stored = [
            Stored(shape.heads, width, shape.window)
            for shape in self.shapes
            for width in (shape.key_width, shape.value_width)
        ]
        try:
            return Cells(stored, slots, self.max_length + 1, self.dtype, self.device)
        except MemoryError as error:
            [size] = error.args
            raise ForetokenError(
                f"The cache of {shown(slots)} sequences of {shown(self.max_length)} positions "
                f"needs {min(size, 10**30) / 2**30:.1f} GiB, which is not there; lower "
                "max_model_len or max_num_seqs."
            ) from error

    @property
    def lazy(self) -> bool:
        """Whether bytes are taken when they are filled, and not all from the beginning."""
        return self._cells.lazy

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return self._cells.token_bytes

    def needs(self, tokens: int) -> int:
        """Bytes that a text of this length fills at most."""
        if not self.lazy:
            return self._cells.row_bytes
        cells = min(tokens + self.spare, self.max_length)
        behind = self.spare + self._window + _TRIMMED + self._cells.step
        kept = behind + max(self._widest, self.spare)
        return self._cells.page_bytes(
            cells, min(cells, kept) if self._trims else cells, padded=True
        )

    @property
    def written(self) -> int:
        """Bytes that are filled now."""
        return self._filled(range(len(self.lengths))) if self.lazy else self._cells.bytes

    @property
    def warm(self) -> int:
        """Bytes that are filled for no sequence."""
        return self._filled(self._warm()) if self.lazy else 0

    def _filled(self, slots: Iterable[int]) -> int:
        places = [(self._ends[slot], self._starts[slot], self._padded[slot]) for slot in slots]
        return sum(self._cells.page_bytes(end, end - start, pad) for end, start, pad in places)

    @property
    def free(self) -> int:
        """Slots that no sequence owns."""
        return len(self.lengths) - len(self._slots)

    def acquire(self, owner: int, text: Text | None = None, most: int = 0) -> int:
        """Give `owner` a slot. It holds as many of the text's first tokens as another slot has, at
        most `most`, and zeros: a NaN left there poisons even masked places."""
        if not self.free:
            raise ForetokenError(
                f"All {len(self.lengths)} cache slots are taken; raise max_num_seqs or send fewer."
            )
        source, length = (0, 0) if text is None else self._known(text, most)
        slot = self._fill(source, length, 0 if text is None else len(text.tokens))
        self._slots[owner] = slot
        self._idle.discard(slot)
        if text is not None:
            self._texts[slot] = text
        return slot

    def slot(self, owner: int) -> int:
        return self._slots[owner]

    def owns(self, owner: int) -> bool:
        return owner in self._slots

    def release(self, owner: int, warm: bool = False) -> None:
        """Free the owner's slot, if it has one. warm: whether what it holds of a text is kept."""
        if (hole := self._slots.pop(owner, None)) is None:
            return
        last = len(self._slots) if self._together else hole
        text = self._texts.pop(hole, None) if warm else None
        kept = [] if text is None else text.tokens[: self.lengths[hole]]
        self._cut(hole, len(kept))
        if hole != last:
            mover = next(o for o, slot in self._slots.items() if slot == last)
            self._exchange(hole, last)
            self._slots[mover] = hole
        self._idle.add(last)
        if kept and text is not None:
            self._keep_warm(last, Text(kept, text.salt))

    def forget(self) -> None:
        """Keep nothing warm, and nothing of those that are active now when they end."""
        for slot in self._warm():
            self._cut(slot, 0)
        self._texts.clear()

    def forget_oldest(self) -> bool:
        """Give back the warm slot that was used least recently; whether there was one."""
        oldest = self._oldest()
        if oldest is not None:
            self._cut(oldest, 0)
        return oldest is not None

    def _warm(self) -> list[int]:
        return sorted(self._idle.intersection(self._texts))

    def _clean(self) -> int | None:
        """The first slot that nobody owns and that holds nothing."""
        if self._together and len(self._slots) not in self._texts:
            return len(self._slots)
        return min(self._idle.difference(self._texts), default=None)

    def _oldest(self) -> int | None:
        return min(self._warm(), key=lambda slot: self._texts[slot].used, default=None)

    def _keep_warm(self, slot: int, text: Text) -> None:
        """Those that it goes on from are no use beside it."""
        for other in self._warm():
            older = self._texts[other]
            if older.common(text, len(older.tokens)) == len(older.tokens):
                self._cut(other, 0)
        self._texts[slot] = text

    def _known(self, text: Text, most: int) -> tuple[int, int]:
        """The slot that has most of a text's first tokens, and how many; of several a warm one."""
        found, idle = (0, False, 0), self._idle
        for slot, other in self._texts.items():
            length = text.common(other, min(most, self.lengths[slot]))
            if length and self.keeps(slot, length):
                found = max(found, (length, slot in idle, slot))
        return found[2], found[0]

    def _fill(self, source: int, length: int, coming: int) -> int:
        """A slot with this many of another's first tokens alone. coming: those it is to hold."""
        clean, oldest, warm = self._clean(), self._oldest(), self._warm()
        whole = source in warm and length == self.lengths[source]
        takes_over = length > 0 and (whole or (clean is None and source == oldest))
        room = source if takes_over else oldest if clean is None else clean
        assert room is not None  # each slot that nobody owns is clean or warm
        slot = len(self._slots) if self._together else room
        if room != slot:
            self._exchange(slot, room)
            source = room if source == slot else source
        if takes_over:
            self._cut(slot, length)
            del self._texts[slot]
            return slot
        self._overwrite(slot, coming)
        if length:
            self._texts[source].touch()
            self.copy(source, slot, length)
        return slot

    def _overwrite(self, slot: int, coming: int) -> None:
        """Make it all zeros, and keep the pages of so many cells: to be written again, those that
        were given back would have to be taken anew."""
        self._texts.pop(slot, None)
        kept = 0 if self._starts[slot] else min(self._ends[slot], coming)
        if not kept:
            self._clear(slot)
            return
        self._clear_after(slot, kept)
        self._cells.zero(slot, kept)
        self.lengths[slot] = 0

    def _exchange(self, one: int, other: int) -> None:
        """Swap what two slots hold of committed tokens; the rest is zeros afterwards."""
        runs = {slot: self._run(slot) for slot in (one, other)}
        self._cells.exchange(one, runs[one], other, runs[other])
        for values in (self.lengths, self._starts):
            values[one], values[other] = values[other], values[one]
        texts = {one: self._texts.pop(other, None), other: self._texts.pop(one, None)}
        self._texts |= {slot: text for slot, text in texts.items() if text is not None}
        for slot, before in runs.items():
            self._clear_around(slot, before)

    def _clear_around(self, slot: int, before: Run) -> None:
        """Make all zeros but the committed tokens. before: those that it held until now."""
        length, start = self.lengths[slot], self._starts[slot]
        if not length:
            self._clear(slot)
            return
        if before.start < start:
            self._cells.clear_passed(slot, Run(before.start, start))
        self._clear_after(slot, length)

    def _run(self, slot: int) -> Run:
        return Run(self._starts[slot], self.lengths[slot])

    def _cut(self, slot: int, length: int) -> None:
        """Make all zeros after a slot's first tokens, and give the pages back."""
        if not length:
            self._texts.pop(slot, None)
            self._clear(slot)
        else:
            self._clear_after(slot, length)
            self.lengths[slot] = length

    def _clear_after(self, slot: int, length: int) -> None:
        if self._ends[slot] > length or self._padded[slot]:
            self._cells.clear_after(slot, length)
        self._ends[slot], self._padded[slot] = length, False

    def _clear(self, slot: int) -> None:
        if self._ends[slot]:
            self._cells.clear(slot)
        self.lengths[slot] = self._ends[slot] = self._starts[slot] = 0
        self._padded[slot] = False

    def keep_windows(self) -> None:
        """Keep what windows have passed, for drafters that read whole layers."""
        self._trims = False

    def stand_together(self) -> None:
        """Keep active slots the first ones, for caches that give a sequence the same slot."""
        self._together = True

    def _trim(self, slot: int) -> None:
        """Give back what the windows have passed, also for texts that are `spare` tokens shorter:
        so many may be taken back."""
        done = self._starts[slot]
        start = self.lengths[slot] - self.spare - self._window
        start -= start % self._cells.step
        if start - done >= _TRIMMED:
            self._cells.clear_passed(slot, Run(done, start))
            self._starts[slot] = start

    def keeps(self, slot: int, length: int) -> bool:
        """Whether all that a text of this length needs of a slot is still there."""
        return length - self._window >= self._starts[slot] or not self._starts[slot]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        self._cells.clear_passed(target, Run(self._starts[target], self._starts[source]))
        self._cells.copy(source, target, Run(self._starts[source], length))
        self.lengths[target], self._starts[target] = length, self._starts[source]
        self._ends[target] = max(self._ends[target], length)

    def move(self, slot: int, source: int, target: int) -> None:
        """Copy one position of a slot to another."""
        self._cells.move(slot, source, target)

    def grown(self, rows: int, length: int, more: int) -> KVCache:
        """A copy of the first rows' first `length` places, with room for `more` after them. Each
        layer's are separate tensors, so that gradients pass through what is written there."""
        cache = copy(self)
        cache.max_length = length + more
        pad = (0, 0, 0, more + 1)
        cache.layer = [KV(*(F.pad(x[:rows, :, :length], pad) for x in one)) for one in self.layer]
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
            if self._trims and self.lazy:
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
        if len(slots) == 1:  # in order, as no place is a later move's source
            for move in moves:
                self._cells.move(*move)
        elif moves:
            rows, source, target = torch.tensor(moves, device=self.device).T
            self._cells.move(rows, source, target)
