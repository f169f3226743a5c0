"""A chain of likeliest tokens, each with siblings that have no children."""

from __future__ import annotations

from collections.abc import Sequence as Seq


class SiblingChain:
    """One sequence's nodes, at most `limit` of them; `open`: whether it may grow."""

    def __init__(self, limit: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.open = limit > 0
        self._limit = limit
        self._end = 0  # slot of the chain's last token

    def grow(self, ids: Seq[float], more: bool = True) -> None:
        """Add the next place's tokens, the chain's own first. more: whether it may grow after
        them."""
        fitting = ids[: self._limit - len(self.tokens)]
        self.parents += [self._end] * len(fitting)
        self._end = len(self.tokens) + 1
        self.tokens += map(int, fitting)
        self.open = more and len(self.tokens) < self._limit
