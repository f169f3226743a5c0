"""A token tree whose branches are given tokens in proportion to their confidence.

Source: Xu et al. 2023 (LLMCad), token tree generation. A branch with confidence C, the product of
its tokens' probabilities, is due M · C / ΣC of M tokens. The next token goes to the branch that
lacks most of what it is due; a branch begins with the second-likeliest token after each node.
Departures: a branch's confidence includes the token that it would get next, so that one without a
token has a confidence too; the first of equals comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Two(NamedTuple):
    """The two likeliest tokens at a place, and their probabilities."""

    tokens: tuple[int, int]
    shares: tuple[float, float]


class Paced(NamedTuple):
    """tokens and the slot (0 = root) of each one's parent; confidences: of each node's path."""

    tokens: list[int]
    parents: list[int]
    confidences: list[float]


@dataclass(slots=True)
class _Branch:
    """parent: the slot that its next token hangs on. confidence: with that token. length: the
    tokens that it has."""

    parent: int
    token: int
    confidence: float
    length: int = 0


Ask = Callable[[int, Paced], Two]
"""What a drafter predicts at a slot of the tree so far, which is the root or its last node."""


def paced(ask: Ask, most: int, least: float = 0.0) -> Paced:
    """A tree of at most `most` nodes. It ends where no branch has a confidence of `least`; the
    first token is taken in any case."""
    tree = Paced([], [], [])
    branches: list[_Branch] = []
    tip = _Branch(0, 0, 1.0)
    while len(tree.tokens) < most:
        slot = len(tree.tokens)
        (first, second), (likely, next_likely) = ask(slot, tree)
        branches.append(_Branch(slot, first, tip.confidence * likely, tip.length))
        branches.append(_Branch(slot, second, tip.confidence * next_likely))
        if tree.tokens and max(branch.confidence for branch in branches) < least:
            break
        tip = _furthest_below(branches, most)
        branches.remove(tip)
        tree.tokens.append(tip.token)
        tree.parents.append(tip.parent)
        tree.confidences.append(tip.confidence)
        tip.length += 1
    return tree


def _furthest_below(branches: list[_Branch], most: int) -> _Branch:
    """The branch that lacks most of its due."""
    total = sum(branch.confidence for branch in branches) or 1.0
    return max(branches, key=lambda branch: most * branch.confidence / total - branch.length)
