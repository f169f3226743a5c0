"""How many bytes the caches of an engine may fill, and which sequence may fill how many of them.

A sequence reserves what its longest possible text takes in every cache, the target's and the
drafter's, before it is admitted; so no running sequence is ever in want of a place. What it has not
written yet takes no memory (`memory`), but is nobody else's either. What caches keep warm of texts
that have ended is reserved by nobody, and is forgotten where a sequence needs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Protocol
from weakref import WeakSet

import torch


class Counted(Protocol):
    """A cache as a budget sees it."""

    def needs(self, tokens: int) -> int:
        """Bytes that a text of this length fills at most."""
        ...

    @property
    def written(self) -> int:
        """Bytes that are filled now."""
        ...

    @property
    def warm(self) -> int:
        """Bytes that are filled for no sequence: what one left that has ended."""
        ...

    @property
    def lazy(self) -> bool:
        """Whether bytes are taken when they are filled, and not all from the beginning."""
        ...

    def forget_oldest(self) -> bool:
        """Give back what was left longest ago; whether there was anything."""
        ...

    def forget(self) -> None:
        """Give back all that was left, and keep nothing of what is there now."""
        ...


class CacheBudget:
    """limit: bytes that all caches may fill together, None for any number. widest: tokens of a
    sequence in a pass at most. longer: how many tokens the caches store for one of the text, where
    they are another tokenizer's; such a budget joins the text's. dtype: in
    which keys and values are stored, None as they are computed. peak: the most bytes that were
    filled when a sequence left, since `reset_peak`."""

    def __init__(
        self,
        limit: int | None = None,
        widest: int = 512,
        longer: int = 1,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.limit, self.widest, self.longer, self.dtype = limit, widest, longer, dtype
        self.peak = 0
        self._caches: WeakSet[Counted] = WeakSet()
        self._reserved: dict[int, int] = {}  # bytes, by sequence
        self._lengths: dict[int, int] = {}  # tokens of the text that they are for

    def join(self, cache: Counted) -> None:
        """Count this cache from now on."""
        self._caches.add(cache)

    @property
    def reserved(self) -> int:
        """Bytes that sequences have reserved."""
        return sum(self._reserved.values())

    @property
    def written(self) -> int:
        """Bytes that are filled now."""
        return sum(cache.written for cache in self._caches)

    @property
    def warm(self) -> int:
        """Bytes that are filled for no sequence."""
        return sum(cache.warm for cache in self._caches)

    @property
    def lazy(self) -> bool:
        """Whether all caches' bytes are taken when they are filled."""
        return all(cache.lazy for cache in self._caches)

    def needs(self, tokens: int) -> int:
        """Bytes that a text of this length may fill in all caches."""
        return sum(cache.needs(self.longer * tokens) for cache in self._caches)

    def holds(self, tokens: int) -> bool:
        """Whether one text of this length fits where there is no other."""
        return self.limit is None or self.needs(tokens) <= self.limit

    def fits(self, tokens: int) -> bool:
        """Whether a text of this length fits beside those that have reserved."""
        return self.limit is None or self.reserved + self.needs(tokens) <= self.limit

    def fitting(self, lengths: Seq[int]) -> int:
        """How many texts of these lengths, in turn, fit beside those that have reserved."""
        limit = math.inf if self.limit is None else self.limit
        needs = [self.needs(tokens) for tokens in lengths]
        return sum(self.reserved + taken <= limit for taken in accumulate(needs))

    def longest(self, most: int) -> int:
        """The longest text, of up to `most` tokens, that fits where there is no other."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.holds(middle) else (low, middle - 1)
        return low

    def reserve(self, owner: int, tokens: int) -> None:
        """Keep what a text of this length may fill for this sequence."""
        self._reserved[owner], self._lengths[owner] = self.needs(tokens), tokens

    def stretch(self, owner: int, tokens: int) -> int:
        """How long a text a sequence has reserved for: this long, if it had less and that is free.
        For caches whose texts may become longer than was known; one that runs without having
        reserved is not bounded."""
        longest = self._lengths.get(owner, tokens)
        if longest >= tokens:
            return longest
        others = self.reserved - self._reserved[owner]
        if self.limit is not None and others + self.needs(tokens) > self.limit:
            return longest
        self.reserve(owner, tokens)
        self.make_room()
        return tokens

    def free(self, owner: int) -> None:
        """Give back what a sequence reserved, if it did. Call it before its cells are given up."""
        self.peak = max(self.peak, self.written)
        self._reserved.pop(owner, None)
        self._lengths.pop(owner, None)

    def make_room(self) -> None:
        """Have caches forget what they keep warm, the oldest first, as far as that stands in the
        way of what is reserved."""
        while self.limit is not None and self.reserved + self.warm > self.limit:
            if not self.forget_oldest():
                return

    def forget_oldest(self) -> bool:
        """Give back the oldest warm text of each cache; whether there was any."""
        return any([cache.forget_oldest() for cache in self._caches])

    def forget(self) -> None:
        """Give back all that is warm, and keep nothing of the sequences that run now."""
        for cache in self._caches:
            cache.forget()

    def reset_peak(self) -> None:
        """Start again from what is filled now."""
        self.peak = self.written
