"""Max-Gram: copy what followed the longest suffix of a text where that suffix occurred before.

Source: Chen et al. 2024 (CS-Drafting), Max-Gram. Departures: prompt and output are one text, of
equally long matches the latest counts, a copy that reaches the text's end goes on with itself, and
there is no bigram table for texts without a match. Nothing is kept between calls, so the text may
also shrink, as a draft does that is being cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from itertools import cycle, islice

_WIDTH = 8  # bytes of a token


def copy_after(tokens: Seq[int], limit: int, longest: int = 16) -> list[int]:
    """`limit` tokens that followed the text's longest suffix, of at most `longest` tokens, the last
    time that it occurred before; none where it didn't."""
    text = array("q", tokens).tobytes()
    stop, start = _WIDTH * (len(tokens) - 1), None  # an occurrence needs something after it
    for size in range(1, min(longest, len(tokens) - 1) + 1 if limit > 0 else 0):
        suffix = text[-_WIDTH * size :]
        place = text.rfind(suffix, 0, stop)
        while place > 0 and place % _WIDTH:
            place = text.rfind(suffix, 0, place + len(suffix) - 1)
        if place < 0:
            break
        stop = place + len(suffix)  # a longer one occurs nowhere later
        start = stop // _WIDTH
    return [] if start is None else repeated(tokens[start : start + limit], limit)


def repeated(copied: Seq[int], limit: int) -> list[int]:
    """A copy up to the end of its own text, gone on with: what comes next in a text that repeats
    itself is the copy again."""
    return list(islice(cycle(copied), limit))
