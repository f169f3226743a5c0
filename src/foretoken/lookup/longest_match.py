"""The longest suffix of a text that occurred before, and what followed it there.

The text itself is searched, which takes microseconds for a thousand tokens and no index. Max-Gram
copies so (Chen et al. 2024, CS-Drafting). Departures: prompt and output are one text, of equally
long matches the latest counts, a copy may go on past the text's end (`repeated`), and there is no
bigram table for texts without a match. Nothing is kept between calls, so the text may also shrink,
as a draft does that is being cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from itertools import cycle, islice

import numpy as np

_SURE = 8  # tokens by which a text must have repeated itself to be expected to go on so


def copy_after(tokens: Seq[int], limit: int, longest: int = 16) -> list[int]:
    """At most `limit` tokens that followed the text's longest suffix, of at most `longest` tokens,
    the last time that it occurred before."""
    if limit < 1:
        return []
    size, start = latest_match(array("i", tokens), 1, longest)
    return repeated(tokens, start, limit) if size else []


def latest_match(text: array[int], shortest: int, longest: int) -> tuple[int, int]:
    """The longest suffix of a text, within these bounds, that occurred before and had a token after
    it: its length, and the place after its latest such occurrence. (0, 0) where there is none."""
    ids, found = np.frombuffer(text, np.intc), (0, 0)
    ends = np.flatnonzero(ids[:-1] == ids[-1]) + 1
    ends = ends[ids[ends] >= 0]  # not before a mark, where a text ends
    for size in range(1, longest + 1):
        if size > 1:
            ends = ends[np.searchsorted(ends, size) :]
            ends = ends[ids[ends - size] == ids[-size]]
        if not len(ends):
            break
        if size >= shortest:
            found = size, int(ends[-1])
    return found


def repeated(text: Seq[int], start: int, limit: int) -> list[int]:
    """At most `limit` tokens of a text that is still written, from a place on. Where they reach its
    end they go on with themselves, if it has repeated itself so far: a table's rows, a loop."""
    copied, period = list(text[start : start + limit]), len(text) - start
    again = max(period, _SURE)
    if 0 < len(copied) < limit and again + period <= len(text):
        tail = list(text[-again - period :])
        if tail[period:] == tail[:-period]:
            return list(islice(cycle(copied), limit))
    return copied


def unmarked(tokens: list[int]) -> list[int]:
    """The tokens before a mark, a negative number that ends a text."""
    return tokens[: next((i for i, token in enumerate(tokens) if token < 0), len(tokens))]
