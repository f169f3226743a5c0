"""Which text a cache's slot holds, and how much of another text that is.

Keys and values at a place follow from the tokens up to it and from nothing else. So what a cache
has of one text serves every text that begins alike, whoever computed it and for which request. A
salt keeps users apart: texts of different salts share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count

from foretoken.sampling.sequence import Sequence

_uses = count()


@dataclass(slots=True)
class Text:
    """tokens: a running sequence's own list, which grows, or those of one that has ended. used:
    the larger, the later it was used last."""

    tokens: Seq[int]
    salt: str
    used: int = field(default_factory=lambda: next(_uses))

    @classmethod
    def of(cls, sequence: Sequence) -> Text | None:
        """A sequence's text; None where it shares nothing."""
        return None if sequence.salt is None else cls(sequence.tokens, sequence.salt)

    def touch(self) -> None:
        """It has been used now."""
        self.used = next(_uses)

    def common(self, other: Text, most: int) -> int:
        """How many tokens the two begin with alike, counted up to `most`."""
        return common_length(self.tokens, other.tokens, most) if self.salt == other.salt else 0


def common_length(one: Seq[int], other: Seq[int], most: int | None = None) -> int:
    """The length of two texts' common beginning, counted up to `most`."""
    low, high = 0, min(len(one), len(other))
    high = high if most is None else min(high, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
