"""How likely a drafter's nodes are to be accepted, counted from what became of its drafts.

A node counts once its parent has been accepted, by its depth, by its rank among its siblings, and
by whether the drafter was right last time: drafts that copy are right or wrong for a while. Counted
are all sequences together, and each one by itself; older counts fade.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import sqrt

_FIRST = (0.6, 0.15, 0.06, 0.03)
"""The chance of a node about which nothing is known, by rank; later ones count with the last."""
_WEIGHT = 1.0  # how many tested nodes that is worth
_ABOVE = 4.0  # and how many the chance of the node above, for a node
_FADE = 0.995  # what a count is worth after another one: about 200 nodes are remembered,
_OWN_FADE = 0.97  # and of a sequence's own 33,
_OWN_WEIGHT = 24.0  # against which what is known from all sequences counts as 24
_LEAST = 0.01  # nodes of a chain with a smaller chance are not thought of
_FORGET, _ENOUGH = 0.9, 4.0  # forgetting leaves so much, down to so many nodes

Test = tuple[int, int, bool]
"""Depth and rank of a node whose parent was accepted, and whether it was accepted itself."""


@dataclass(frozen=True)
class Shape:
    """A draft without its tokens. Of each node in draw order: its parent's slot (0 is the root, -1
    says that it can't be accepted), its depth, and its rank among its siblings (both from 0)."""

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    ranks: tuple[int, ...]
    is_chain: bool = False

    @classmethod
    def of(cls, parents: Seq[int]) -> Shape:
        if all(parent == slot for slot, parent in enumerate(parents)):
            return chain(len(parents))
        depths, ranks, children = [-1], [], [0] * (len(parents) + 2)  # the last is nobody's
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            ranks.append(min(children[parent], len(_FIRST) - 1))
            children[parent] += 1
        return cls(tuple(parents), tuple(depths[1:]), tuple(ranks))

    def __len__(self) -> int:
        return len(self.parents)

    def levels(self, nodes: int) -> int:
        """Of its first so many nodes."""
        return min(nodes, len(self)) if self.is_chain else max(self.depths[:nodes], default=-1) + 1

    @cached_property
    def reach(self) -> list[int]:
        """Levels by nodes: [n] of its first n."""
        found = [0]
        for depth in self.depths:
            found.append(max(found[-1], depth + 1))
        return found

    def tests(self, path: Seq[int]) -> Iterator[Test]:
        """What a pass says of the nodes, by the accepted slots."""
        kept = {0, *path}
        for node, parent in enumerate(self.parents):
            if parent in kept:
                yield self.depths[node], self.ranks[node], node + 1 in kept


@lru_cache(maxsize=256)
def chain(nodes: int) -> Shape:
    """Each node the only child of the one before."""
    return Shape(tuple(range(nodes)), tuple(range(nodes)), (0,) * nodes, True)


class Rates:
    """Counts of tested and of accepted nodes, by (right last time, rank) and depth.

    fade: what a count is worth after another one.
    """

    def __init__(self, fade: float = _FADE) -> None:
        self._fade = fade
        self.accepted: list[list[float]] = [[] for _ in range(2 * len(_FIRST))]
        self.tested: list[list[float]] = [[] for _ in range(2 * len(_FIRST))]

    def note(self, tests: Iterable[Test], hot: bool) -> None:
        for depth, rank, hit in tests:
            accepted, tested = self.accepted[_line(rank, hot)], self.tested[_line(rank, hot)]
            while len(tested) <= depth:
                accepted.append(0.0)
                tested.append(0.0)
            accepted[depth] = self._fade * accepted[depth] + hit
            tested[depth] = self._fade * tested[depth] + 1

    def forget(self, times: int = 1) -> None:
        """Let all counts fade, down to a few nodes, so that it is worth testing again."""
        left = _FORGET**times
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            for depth, count in enumerate(tested):
                if count > _ENOUGH:
                    tested[depth] *= left
                    accepted[depth] *= left


def _line(rank: int, hot: bool) -> int:
    return rank + hot * len(_FIRST)


class Guess:
    """A draft after the first `start` tokens of a text, held against what comes to stand there."""

    __slots__ = ("_depth", "_shape", "_slot", "_start", "_tokens", "hot", "open")

    def __init__(self, tokens: Seq[int], shape: Shape, start: int, hot: bool) -> None:
        self._tokens, self._shape, self._start, self.hot = tokens, shape, start, hot
        self._slot = self._depth = 0
        self.open = True

    @property
    def right(self) -> bool:
        """Whether it has foretold all of the text so far, or until it ended."""
        return self._slot > 0 and self._depth == self._shape.depths[self._slot - 1] + 1

    def tests(self, text: Seq[int]) -> Iterator[Test]:
        """What the text says by now, once for each node; `open` is whether it can say more."""
        while self.open and (place := self._start + self._depth) < len(text):
            at, self.open = self._slot, False
            for node, parent in enumerate(self._shape.parents):
                if parent == at:
                    hit = self._tokens[node] == text[place]
                    yield self._depth, self._shape.ranks[node], hit
                    if hit:
                        self._slot, self.open = node + 1, node + 1 in self._shape.parents
            self._depth += 1


@dataclass(slots=True, eq=False)
class View:
    """What one sequence has seen of one drafter. hot: it was right last time. guess: a draft that
    is held against the text."""

    rates: Rates = field(default_factory=lambda: Rates(_OWN_FADE))
    hot: bool = False
    guess: Guess | None = None

    def checked(self, shared: Rates, shape: Shape, asked: int, path: Seq[int]) -> None:
        """What a pass said of a draft, by the accepted slots. asked: how many nodes it was to have;
        a chain that ended before is as good as refused there."""
        tests = list(shape.tests(path))
        whole = len(path) == shape.levels(len(shape))
        if whole and shape.is_chain and len(shape) < asked:
            tests.append((len(shape), 0, False))
        self._note(shared, tests, self.hot)
        self.hot = whole and bool(path)

    def said(self, tokens: Seq[int], shape: Shape, start: int, used: bool) -> None:
        """A draft after `start` tokens that cost nothing; it is remembered if it was used, or if
        the one before has been judged."""
        if len(shape) and (used or self.guess is None or not self.guess.open):
            self.guess = Guess(tokens, shape, start, self.hot)

    def follow(self, shared: Rates, text: Seq[int]) -> None:
        """What the text says of the guess."""
        if self.guess is not None and self.guess.open:
            self._note(shared, list(self.guess.tests(text)), self.guess.hot)
            self.hot = self.guess.right

    def _note(self, shared: Rates, tests: Seq[Test], hot: bool) -> None:
        shared.note(tests, hot)
        self.rates.note(tests, hot)


def chances(
    shared: Rates, view: View, rank: int, levels: int, hope: float = 0.0
) -> Iterator[float]:
    """The chance of a node of this rank at each depth, its parent being accepted; `hope` is how
    many standard errors are added."""
    chance, weight, line = _FIRST[rank], _WEIGHT, _line(rank, view.hot)
    if view.hot and (cold := shared.tested[_line(rank, False)]):
        chance = (weight * chance + shared.accepted[_line(rank, False)][0]) / (weight + cold[0])
        weight = _ABOVE
    accepted, tested = shared.accepted[line], shared.tested[line]
    own_accepted, own_tested = view.rates.accepted[line], view.rates.tested[line]
    for depth in range(levels):
        seen = weight
        if depth < len(tested):
            seen += tested[depth]
            chance = (weight * chance + accepted[depth]) / seen
        here = chance
        if depth < len(own_tested):
            here = (_OWN_WEIGHT * chance + own_accepted[depth]) / (_OWN_WEIGHT + own_tested[depth])
        yield min(1.0, here + hope * 0.5 / sqrt(seen)) if hope else here
        weight = _ABOVE


def expected(shape: Shape, shared: Rates, view: View, hope: float = 0.0) -> list[float]:
    """Accepted tokens by nodes: [n] is what the first n nodes bring on average."""
    total, sums = 0.0, [0.0]
    levels = shape.levels(len(shape))
    if shape.is_chain:
        worth = 1.0
        for chance in chances(shared, view, 0, levels, hope):
            worth *= chance
            if worth < _LEAST:
                break
            total += worth
            sums.append(total)
        return sums
    table = [
        list(chances(shared, view, rank, levels, hope)) for rank in range(max(shape.ranks) + 1)
    ]
    each = [1.0]
    for parent, depth, rank in zip(shape.parents, shape.depths, shape.ranks, strict=True):
        each.append(each[parent] * table[rank][depth] if parent >= 0 else 0.0)
        total += each[-1]
        sums.append(total)
    return sums
