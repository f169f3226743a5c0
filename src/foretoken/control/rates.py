"""Acceptance rates of a drafter's nodes, counted from its verified drafts.

A node counts once its parent has been accepted, by its depth, by its rank among its siblings, and
by its draft's *evidence*: whether the text is sampled, whether the drafter's last draft was right
(copies are right or wrong for a while), and how many nodes a copy has (who has seen more of a
phrase copies more of what follows it). All sequences are counted together, and each one by itself;
older counts fade. What a drafter is believed to do before anything was counted is its `Prior`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from math import sqrt

from foretoken.control.priors import SIZES, UNKNOWN, Prior
from foretoken.tree import DraftTree, Kind

_RANKS = (1.0, 0.25, 0.1, 0.05)
"""The assumed acceptance rate of an unknown node, by rank, as a share of its first sibling's;
higher ranks count with the last."""
_PARENT_WEIGHT = 4.0  # how many the rate of the level above counts as
_FADE = 0.995  # factor of a count with each later one: about 200 nodes are remembered,
_SEQUENCE_FADE = 0.97  # and 33 of a single sequence,
_SHARED_WEIGHT = 24.0  # for which the rate of all sequences counts as 24 nodes
_LEAST = 0.01  # nodes of a chain with a smaller probability are left out
_FORGET = 0.9  # share of the counts that `forget` leaves,
_ENOUGH = 4.0  # where there are more than this many

KINDS = 2 * 2 * (len(SIZES) + 1) * len(_RANKS)
"""How many kinds of nodes are counted apart: greedy or sampled, the draft's size, whether the last
one was right, the rank."""

Test = tuple[int, int, bool]
"""Depth and rank of a node whose parent was accepted, and whether it was accepted itself."""


@dataclass(frozen=True)
class Shape:
    """A draft without its tokens. For each node in draw order: its parent's slot (0 is the root, -1
    marks a node that can't be accepted), its depth, and its rank among its siblings (both from
    0)."""

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
            ranks.append(min(children[parent], len(_RANKS) - 1))
            children[parent] += 1
        return cls(tuple(parents), tuple(depths[1:]), tuple(ranks))

    def __len__(self) -> int:
        return len(self.parents)

    def levels(self, nodes: int) -> int:
        """How many levels its first `nodes` nodes have."""
        return min(nodes, len(self)) if self.is_chain else max(self.depths[:nodes], default=-1) + 1

    @cached_property
    def reach(self) -> list[int]:
        """[n] the levels of its first n nodes."""
        levels = [0]
        for depth in self.depths:
            levels.append(max(levels[-1], depth + 1))
        return levels

    def tests(self, path: Seq[int]) -> Iterator[Test]:
        """The nodes whose parent is on the accepted path, with their outcomes."""
        accepted = {0, *path}
        for node, parent in enumerate(self.parents):
            if parent in accepted:
                yield self.depths[node], self.ranks[node], node + 1 in accepted


@lru_cache(maxsize=256)
def chain(nodes: int) -> Shape:
    """The shape in which each node is the only child of the one before."""
    return Shape(tuple(range(nodes)), tuple(range(nodes)), (0,) * nodes, True)


def shapes_of(tree: DraftTree) -> list[Shape]:
    """The shape of each row's draft; nodes that can't be accepted have parent -1."""
    plain = tree.kinds is None and tree.kind != Kind.AUXILIARY
    if plain and tree.is_chain:
        return [chain(count) for count in tree.counts]
    above = tree.parent_slots if plain else tree.parent_slots.where(tree.valid, -1)
    rows = zip(above.tolist(), tree.counts, strict=True)
    return [Shape.of(row[:count]) for row, count in rows]


class Rates:
    """Counts of tested and of accepted nodes, by (evidence, rank) and depth.

    fade: the factor of a count with each later one. prior: what is believed at first.
    """

    def __init__(self, fade: float = _FADE, prior: Prior = UNKNOWN) -> None:
        self._fade, self.prior = fade, prior
        self.accepted: list[list[float]] = [[] for _ in range(KINDS)]
        self.tested: list[list[float]] = [[] for _ in range(KINDS)]

    def note(self, tests: Iterable[Test], evidence: int) -> None:
        """Count these tests."""
        for depth, rank, hit in tests:
            index = _index(rank, evidence)
            accepted, tested = self.accepted[index], self.tested[index]
            while len(tested) <= depth:
                accepted.append(0.0)
                tested.append(0.0)
            accepted[depth] = self._fade * accepted[depth] + hit
            tested[depth] = self._fade * tested[depth] + 1

    def forget(self, times: int = 1) -> None:
        """Let all counts fade, down to a few nodes, so that it is worth testing again."""
        kept = _FORGET**times
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            for depth, count in enumerate(tested):
                if count > _ENOUGH:
                    tested[depth] *= kept
                    accepted[depth] *= kept


def _index(rank: int, evidence: int) -> int:
    """Where `Rates` has the counts of a rank."""
    return rank + evidence * len(_RANKS)


def _evidence(last_right: bool, nodes: int | None, sampled: bool) -> int:
    """A number for each kind of draft. nodes: of a copy; None where the draft is computed, whose
    length was asked for and says nothing. sampled: whether the text is."""
    size = len(SIZES) if nodes is None else bisect_left(SIZES, nodes)
    return 2 * (size + sampled * (len(SIZES) + 1)) + last_right


class PendingDraft:
    """A draft for the place after the first `start` tokens of a text, to be compared with what is
    written there."""

    __slots__ = ("_depth", "_shape", "_slot", "_start", "_tokens", "evidence", "open")

    def __init__(self, tokens: Seq[int], shape: Shape, start: int, evidence: int) -> None:
        self._tokens, self._shape, self._start = tokens, shape, start
        self.evidence = evidence
        self._slot = self._depth = 0
        self.open = True

    @property
    def right(self) -> bool:
        """Whether it agrees with all of the text so far, or until its own end."""
        return self._slot > 0 and self._depth == self._shape.depths[self._slot - 1] + 1

    def tests(self, text: Seq[int]) -> Iterator[Test]:
        """The nodes that the text tests by now, each once; sets `open`: whether more can follow."""
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
    """One drafter's record in one sequence. sampled: whether the text is, at a temperature above 0.
    last_right: whether its last draft was right. pending: a draft that is still compared with the
    text. reads, read: of one that computes, whether it reads the prompt with the target, and how
    many tokens of the text it has read."""

    sampled: bool = False
    rates: Rates = field(default_factory=lambda: Rates(_SEQUENCE_FADE))
    last_right: bool = False
    pending: PendingDraft | None = None
    reads: bool | None = None
    read: int = 0

    def record_pass(self, shared: Rates, shape: Shape, asked: int, path: Seq[int]) -> None:
        """Count a draft's nodes by the accepted slots. asked: how many nodes it was to have; a
        chain that ended earlier counts as rejected at its end."""
        tests = list(shape.tests(path))
        whole = len(path) == shape.levels(len(shape))
        if whole and shape.is_chain and len(shape) < asked:
            tests.append((len(shape), 0, False))
        self._note(shared, tests, _evidence(self.last_right, None, self.sampled))
        self.last_right = whole and bool(path)

    def skip_pass(self) -> None:
        """Another drafter drafted in this step; the last draft tells nothing about the next."""
        self.last_right = False

    def remember(self, tokens: Seq[int], shape: Shape, start: int, used: bool) -> None:
        """Keep a copied draft to compare it with the text, if it was used or if the one before has
        been judged."""
        if len(shape) and (used or self.pending is None or not self.pending.open):
            evidence = _evidence(self.last_right, len(shape), self.sampled)
            self.pending = PendingDraft(tokens, shape, start, evidence)

    def compare(self, shared: Rates, text: Seq[int]) -> None:
        """Count the nodes of the pending draft that the text has confirmed or refuted."""
        if self.pending is not None and self.pending.open:
            self._note(shared, list(self.pending.tests(text)), self.pending.evidence)
            self.last_right = self.pending.right

    def _note(self, shared: Rates, tests: Seq[Test], evidence: int) -> None:
        shared.note(tests, evidence)
        self.rates.note(tests, evidence)


class Levels:
    """How many levels the drafts of a part have, which may end before they have as many as they
    were to have."""

    def __init__(self) -> None:
        self._asked: list[float] = []
        self._had: list[float] = []

    def note(self, asked: int, had: int) -> None:
        """Count a draft that was to have so many levels, and had so many."""
        self._asked += [1.0] * (asked - len(self._asked))  # until it is known, drafts are whole
        self._had += [1.0] * (asked - len(self._had))
        for level in range(asked):
            self._asked[level] = _FADE * self._asked[level] + 1
            self._had[level] = _FADE * self._had[level] + (level < had)

    def expected(self, most: int) -> list[float]:
        """[most + 1] the levels that a draft of n levels is expected to have."""
        shares = [had / asked for had, asked in zip(self._had, self._asked, strict=True)][:most]
        return list(accumulate(shares + [1.0] * (most - len(shares)), initial=0.0))


def chances(
    shared: Rates, history: History, rank: int, levels: int, evidence: int, hope: float = 0.0
) -> Iterator[float]:
    """The estimated acceptance rate of a node of this rank at each depth, given that its parent is
    accepted, plus `hope` standard errors."""
    prior, index = shared.prior, _index(rank, evidence)
    size, last_right = divmod(evidence, 2)
    sampled, size = divmod(size, len(SIZES) + 1)
    if sampled and prior.sampled is not None:
        prior = prior.sampled
    chance, weight = _RANKS[rank] * prior.first[size], prior.weight
    if last_right:  # it will rather be right again
        before = _index(rank, evidence - 1)
        if shared.tested[before]:
            chance = (weight * chance + shared.accepted[before][0]) / (
                weight + shared.tested[before][0]
            )
        chance = 1 - (1 - chance) * prior.again if rank == 0 else chance
    accepted, tested = shared.accepted[index], shared.tested[index]
    accepted_here, tested_here = history.rates.accepted[index], history.rates.tested[index]
    for depth in range(levels):
        if depth == 1:
            chance, weight = max(chance, _RANKS[rank] * prior.deeper), _PARENT_WEIGHT
        count = weight
        if depth < len(tested):
            count += tested[depth]
            chance = (weight * chance + accepted[depth]) / count
        rate = chance
        if depth < len(tested_here):
            hits, weight_here = accepted_here[depth], tested_here[depth]
            rate = (_SHARED_WEIGHT * chance + hits) / (_SHARED_WEIGHT + weight_here)
        yield min(1.0, rate + hope * 0.5 / sqrt(count)) if hope else rate


def expected(
    shape: Shape, shared: Rates, history: History, hope: float = 0.0, *, copied: bool = False
) -> list[float]:
    """[n] the expected accepted tokens of the first n nodes of a draft, which is a copy or would be
    computed."""
    total, sums = 0.0, [0.0]
    levels = shape.levels(len(shape))
    evidence = _evidence(history.last_right, len(shape) if copied else None, history.sampled)
    if shape.is_chain:
        reached = 1.0
        for chance in chances(shared, history, 0, levels, evidence, hope):
            reached *= chance
            if reached < _LEAST:
                break
            total += reached
            sums.append(total)
        return sums
    table = [
        list(chances(shared, history, rank, levels, evidence, hope))
        for rank in range(max(shape.ranks) + 1)
    ]
    accepted = [1.0]  # by slot, the probability
    for parent, depth, rank in zip(shape.parents, shape.depths, shape.ranks, strict=True):
        accepted.append(accepted[parent] * table[rank][depth] if parent >= 0 else 0.0)
        total += accepted[-1]
        sums.append(total)
    return sums
