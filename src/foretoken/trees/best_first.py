"""The likeliest nodes of a tree whose branches have known shares, e.g. counted continuations.

A node's weight is the product of the shares on its path, so no node weighs more than its parent,
and taking the heaviest remaining node again and again gives the heaviest tree of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush, nlargest
from itertools import count
from operator import itemgetter
from typing import NamedTuple, TypeVar

Place = TypeVar("Place")


class Branches(NamedTuple):
    """tokens and the slot (0 = root) of each one's parent; score: the sum of the weights, which is
    how many tokens would be accepted if the shares were the target's distribution."""

    tokens: list[int]
    parents: list[int]
    score: float


NONE = Branches([], [], 0.0)


def best_first(
    root: Place,
    following: Callable[[Place], Iterable[tuple[float, int, Place]]],
    most: int,
    *,
    least: float = 0.0,
    width: int | None = None,
) -> Branches:
    """The `most` heaviest nodes below `root` that weigh at least `least`.

    following: a place's children as (share, token, place). width: how many of a node's children
    may be taken, the likeliest; 1 makes a chain.
    """
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    heap: list[tuple[float, int, int, int, Place]] = []
    order = count()  # the first of equals first, and places are never compared
    slot, weight, place = 0, 1.0, root
    while len(tokens) < most:
        children = [child for child in following(place) if weight * child[0] >= least]
        if width is not None and len(children) > width:
            children = nlargest(width, children, key=itemgetter(0))
        for share, token, child in children:
            heappush(heap, (-weight * share, next(order), slot, token, child))
        if not heap:
            break
        negative, _, parent, token, place = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        slot, weight = len(tokens), -negative
        score += weight
    return Branches(tokens, parents, score)
