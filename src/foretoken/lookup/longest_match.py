"""Max-Gram: copy what followed the longest suffix of a text where that suffix occurred before.

Source: Chen et al. 2024 (CS-Drafting), Max-Gram. Departures: prompt and output are one text, of
equally long matches the latest counts, a copy may go on past the text's end (`repeated`), and there
is no bigram table for texts without a match. Nothing is kept between calls, so the text may
also shrink, as a draft does that is being cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from itertools import cycle, islice

_WIDTH = 8  # bytes of a token


_SURE = 8  # tokens by which a text must have repeated itself to be expected to go on so


def copy_after(tokens: Seq[int], limit: int, longest: int = 16) -> list[int]:
    """At most `limit` tokens that followed the text's longest suffix, of at most `longest` tokens,
    the last time that it occurred before."""
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
    return [] if start is None else repeated(tokens, start, limit)


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
