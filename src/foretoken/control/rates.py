"""Acceptance rates of a drafter's nodes, counted from what became of its drafts.

A node counts once its parent has been accepted, by its depth, by its rank among its siblings, and
by whether the drafter's last draft was right: copied drafts are right or wrong for a while. All
sequences are counted together, and each one by itself; older counts fade.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import sqrt

_FIRST = (0.6, 0.15, 0.06, 0.03)
"""The assumed acceptance rate of an unknown node, by rank; higher ranks count with the last."""
_WEIGHT = 1.0  # how many tested nodes that assumption counts as
_ABOVE = 4.0  # how many the rate of the node above counts as
_FADE = 0.995  # factor of a count with each later one: about 200 nodes are remembered,
_OWN_FADE = 0.97  # and 33 of a single sequence,
_OWN_WEIGHT = 24.0  # for which the rate of all sequences counts as 24 nodes
_LEAST = 0.01  # nodes of a chain with a smaller chance are left out
_FORGET, _ENOUGH = 0.9, 4.0  # `forget` leaves this share of the counts, down to this many nodes

Test = tuple[int, int, bool]
"""Depth and rank of a node whose parent was accepted, and whether it was accepted itself."""


@dataclass(frozen=True)
class Shape:
    """A draft without its tokens. For each node in draw order: its parent's slot (0 is the root, -1
    a node that can't be accepted), its depth, and its rank among its siblings (both from 0)."""

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
        """Levels of its first nodes."""
        return min(nodes, len(self)) if self.is_chain else max(self.depths[:nodes], default=-1) + 1

    @cached_property
    def reach(self) -> list[int]:
        """[n] the levels of its first n nodes."""
        levels = [0]
        for depth in self.depths:
            levels.append(max(levels[-1], depth + 1))
        return levels

    def tests(self, path: Seq[int]) -> Iterator[Test]:
        """Which nodes a pass tested, and their outcome, from the accepted slots."""
        accepted = {0, *path}
        for node, parent in enumerate(self.parents):
            if parent in accepted:
                yield self.depths[node], self.ranks[node], node + 1 in accepted


@lru_cache(maxsize=256)
def chain(nodes: int) -> Shape:
    """The shape in which each node is the only child of the one before."""
    return Shape(tuple(range(nodes)), tuple(range(nodes)), (0,) * nodes, True)


class Rates:
    """Counts of tested and of accepted nodes, by (last draft right, rank) and depth.

    fade: the factor of a count with each later one.
    """

    def __init__(self, fade: float = _FADE) -> None:
        self._fade = fade
        self.accepted: list[list[float]] = [[] for _ in range(2 * len(_FIRST))]
        self.tested: list[list[float]] = [[] for _ in range(2 * len(_FIRST))]

    def note(self, tests: Iterable[Test], last_right: bool) -> None:
        for depth, rank, hit in tests:
            accepted, tested = (
                self.accepted[_line(rank, last_right)],
                self.tested[_line(rank, last_right)],
            )
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


def _line(rank: int, last_right: bool) -> int:
    return rank + last_right * len(_FIRST)


class PendingDraft:
    """A draft after the first `start` tokens of a text, to be compared with what is written
    there."""

    __slots__ = ("_depth", "_shape", "_slot", "_start", "_tokens", "last_right", "open")

    def __init__(self, tokens: Seq[int], shape: Shape, start: int, last_right: bool) -> None:
        self._tokens, self._shape, self._start, self.last_right = tokens, shape, start, last_right
        self._slot = self._depth = 0
        self.open = True

    @property
    def right(self) -> bool:
        """Whether it agrees with all of the text so far, or until its own end."""
        return self._slot > 0 and self._depth == self._shape.depths[self._slot - 1] + 1

    def tests(self, text: Seq[int]) -> Iterator[Test]:
        """What the text shows by now, once for each node; `open`: whether more can follow."""
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
class History:
    """What one sequence has seen of one drafter. last_right: whether its last draft was right.
    pending: a draft that is still compared with the text."""

    rates: Rates = field(default_factory=lambda: Rates(_OWN_FADE))
    last_right: bool = False
    pending: PendingDraft | None = None

    def record_pass(self, shared: Rates, shape: Shape, asked: int, path: Seq[int]) -> None:
        """Count a draft's nodes by the accepted slots. asked: how many nodes it was to have; a
        chain that ended before counts as refused there."""
        tests = list(shape.tests(path))
        whole = len(path) == shape.levels(len(shape))
        if whole and shape.is_chain and len(shape) < asked:
            tests.append((len(shape), 0, False))
        self._note(shared, tests, self.last_right)
        self.last_right = whole and bool(path)

    def skip_pass(self) -> None:
        """Another drafter drafted in this step, so the last draft says nothing of the next one."""
        self.last_right = False

    def remember(self, tokens: Seq[int], shape: Shape, start: int, used: bool) -> None:
        """Keep a copied draft to compare it with the text, if it was used or if the one before has
        been judged."""
        if len(shape) and (used or self.pending is None or not self.pending.open):
            self.pending = PendingDraft(tokens, shape, start, self.last_right)

    def compare(self, shared: Rates, text: Seq[int]) -> None:
        """Count what the text shows of the pending draft."""
        if self.pending is not None and self.pending.open:
            self._note(shared, list(self.pending.tests(text)), self.pending.last_right)
            self.last_right = self.pending.right

    def _note(self, shared: Rates, tests: Seq[Test], last_right: bool) -> None:
        shared.note(tests, last_right)
        self.rates.note(tests, last_right)


def chances(
    shared: Rates, history: History, rank: int, levels: int, hope: float = 0.0
) -> Iterator[float]:
    """The acceptance rate of a node of this rank at each depth, given that its parent is accepted;
    `hope` standard errors are added."""
    chance, weight, line = _FIRST[rank], _WEIGHT, _line(rank, history.last_right)
    if history.last_right and (cold := shared.tested[_line(rank, False)]):
        chance = (weight * chance + shared.accepted[_line(rank, False)][0]) / (weight + cold[0])
        weight = _ABOVE
    accepted, tested = shared.accepted[line], shared.tested[line]
    own_accepted, own_tested = history.rates.accepted[line], history.rates.tested[line]
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


def expected(shape: Shape, shared: Rates, history: History, hope: float = 0.0) -> list[float]:
    """[n] the expected accepted tokens of the first n nodes."""
    total, sums = 0.0, [0.0]
    levels = shape.levels(len(shape))
    if shape.is_chain:
        reached = 1.0
        for chance in chances(shared, history, 0, levels, hope):
            reached *= chance
            if reached < _LEAST:
                break
            total += reached
            sums.append(total)
        return sums
    table = [
        list(chances(shared, history, rank, levels, hope)) for rank in range(max(shape.ranks) + 1)
    ]
    each = [1.0]
    for parent, depth, rank in zip(shape.parents, shape.depths, shape.ranks, strict=True):
        each.append(each[parent] * table[rank][depth] if parent >= 0 else 0.0)
        total += each[-1]
        sums.append(total)
    return sums
