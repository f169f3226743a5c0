"""The steps that a batch could take next, and how many tokens each yields in how much time.

Every sequence has at most one copy, whose tokens cost nothing but their place in the pass; at most
one drafter computes besides, for the sequences that gain more by it than by their copy. What a pass
costs depends on the tokens of all sequences together. Where padding is computed, the widest draft
counts for all sequences, so all may be as wide. Where it isn't, each token costs its own time, and
the most probable ones of the whole batch are drafted first (Liu et al. 2024, SmartSpec, choose one
length for all).

Legend: gains [n]: the tokens expected from the first n nodes of a sequence's draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from foretoken.control.cost_model import CostModel

_SIZES = (1, 2, 4)  # of passes, in plain ones: what a node costs is taken from each of them
_REMEMBERED = 50  # steps, of which the mean is what steps usually yield


@dataclass(slots=True)
class Plan:
    """A candidate for a step. tokens, ms: expected of the step. nodes: the most that each sequence
    takes of its copy or, if `computes` says so, of what a drafter computes for it. copying_ms: what
    the copies add to the pass. part: the drafter that computes, if one does."""

    tokens: float
    ms: float
    nodes: Seq[int]
    computes: Seq[bool]
    copying_ms: float
    part: int | None = None

    @property
    def speed(self) -> float:
        return self.tokens / self.ms


class Planner(Protocol):
    """Finds the best steps of a batch."""

    def copying(self, gains: Seq[list[float]], reading: float) -> Plan:
        """The best step with copies alone. gains: of each sequence's copy. reading: milliseconds in
        which the pass reads the cache."""
        ...

    def computing(
        self,
        gains: Seq[list[float]],
        copies: Plan,
        own: Seq[list[float]],
        drafting: Seq[float],
        reading: float,
    ) -> Plan:
        """The best step in which a drafter computes for some sequences, or `copies` where none had
        better do so. copies: what `copying` found. own: gains of each sequence's computed draft.
        drafting [n]: milliseconds of drafting n nodes. reading: as for `copying`."""
        ...

    def better(self, plan: Plan, other: Plan) -> bool:
        """Whether a plan is better than another one for the same batch."""
        ...


class Padded:
    """Padding is computed, or there is one sequence. The best step has the most tokens a
    millisecond."""

    def __init__(self, costs: CostModel, most: int) -> None:
        """most: nodes of a sequence's draft."""
        self._costs, self._most = costs, most

    def copying(self, gains: Seq[list[float]], reading: float) -> Plan:
        passes = [ms + reading for ms in self._costs.passes(len(gains), self._most)]
        tokens = _totals(gains)
        width = _fastest_length(tokens, passes)
        nodes, none = [width] * len(gains), [False] * len(gains)
        return Plan(tokens[width], passes[width], nodes, none, passes[width] - passes[0])

    def computing(
        self,
        gains: Seq[list[float]],
        copies: Plan,
        own: Seq[list[float]],
        drafting: Seq[float],
        reading: float,
    ) -> Plan:
        passes = self._costs.passes(len(gains), self._most)
        tokens = _totals(gains, own)
        ms = [reading + sum(both) for both in zip(drafting, passes, strict=False)]
        n = _fastest_length(tokens, ms)
        if not n:
            return copies
        # Copies for the other sequences may be longer than what is computed.
        widths = range(n, max(n + 1, *map(len, gains)) if len(gains) > 1 else n + 1)
        wider = [ms[n] + passes[width] - passes[n] for width in widths]
        most = [_tokens(gains, width, own, n) for width in widths]
        at = _fastest_length(most, wider)
        computes = [
            tokens_at(computed, n) > tokens_at(copy, n + at)
            for copy, computed in zip(gains, own, strict=True)
        ]
        nodes = [n if computed else n + at for computed in computes]
        return Plan(most[at], wider[at], nodes, computes, wider[at] - ms[n])

    def better(self, plan: Plan, other: Plan) -> bool:
        return plan.speed > other.speed


class Packed:
    """Padding costs nothing.

    Steps differ in what there is to copy, so the one with most tokens a millisecond is not the one
    to take: what counts is the whole text's speed. The best step has the most tokens beyond those
    that are usually written in its time (as in renewal reward processes)."""

    def __init__(self, costs: CostModel, most: int) -> None:
        """most: nodes of a sequence's draft."""
        self._costs, self._most = costs, most
        self._yield = self._time = 1.0  # of a mean step, in those of plain ones
        self._steps = 1
        self._rate = 0.0  # tokens a millisecond that the present batch usually writes

    def count(self, tokens: float, ms: float, steps: int = 1) -> None:
        """Count steps that were taken: what each yielded and how long it took, in plain steps."""
        self._steps = min(self._steps + steps, _REMEMBERED)
        weight = min(1.0, steps / self._steps)
        self._yield += weight * (tokens - self._yield)
        self._time += weight * (ms - self._time)

    def copying(self, gains: Seq[list[float]], reading: float) -> Plan:
        count = len(gains)
        sizes = self._costs.sizes(count * (1 + self._most))
        ms = [time + reading for time in sizes[count:]]  # [n] with n nodes in all
        self._rate = count / ms[0] * self._yield / self._time
        offers = _offers(gains)
        tokens = list(accumulate((gain for gain, _ in offers), initial=float(count)))
        worth = [t - self._rate * time for t, time in zip(tokens, ms, strict=False)]
        taken = worth.index(max(worth))
        nodes = [0] * count
        for _, row in offers[:taken]:
            nodes[row] += 1
        return Plan(tokens[taken], ms[taken], nodes, [False] * count, ms[taken] - ms[0])

    def computing(
        self,
        gains: Seq[list[float]],
        copies: Plan,
        own: Seq[list[float]],
        drafting: Seq[float],
        reading: float,
    ) -> Plan:
        best, count = copies, len(gains)
        sizes = self._costs.sizes(count * (1 + self._most) + 1)
        for size in (count * times for times in _SIZES if times <= self._most):
            price = self._rate * (sizes[size + 1] - sizes[size])  # of a node, in tokens
            length, computes = self._divided(gains, own, drafting, price)
            mixed = [
                draft[: length + 1] if computed else copy
                for copy, draft, computed in zip(gains, own, computes, strict=True)
            ]
            plan = self.copying(mixed, reading)
            plan.computes = computes
            taken = list(zip(plan.nodes, computes, strict=True))
            plan.ms += drafting[max(nodes * computed for nodes, computed in taken)]
            whole = count + sum(plan.nodes)
            copied = sum(nodes for nodes, computed in taken if not computed)
            plan.copying_ms = sizes[whole] - sizes[whole - copied]
            best = plan if self.better(plan, best) else best
        return best

    def _divided(
        self, gains: Seq[list[float]], own: Seq[list[float]], drafting: Seq[float], price: float
    ) -> tuple[int, list[bool]]:
        """How many nodes had better be computed, and for which sequences, at this price of a
        node."""
        copied = [_worth(row, price)[-1] for row in gains]
        computed = [_worth(row, price) for row in own]
        lengths = range(min(len(drafting), max(map(len, own))))
        length = max(
            lengths,
            key=lambda n: (
                sum(max(a, tokens_at(b, n)) for a, b in zip(copied, computed, strict=True))
                - self._rate * drafting[n]
            ),
        )
        return length, [tokens_at(b, length) > a for a, b in zip(copied, computed, strict=True)]

    def better(self, plan: Plan, other: Plan) -> bool:
        return plan.tokens - other.tokens > self._rate * (plan.ms - other.ms)


def _worth(gains: Seq[float], price: float) -> list[float]:
    """[n] the most tokens that up to n nodes yield beyond their price."""
    return list(accumulate((gain - price * n for n, gain in enumerate(gains)), max))


def _offers(gains: Seq[list[float]]) -> list[tuple[float, int]]:
    """(gain, sequence) of every node that a draft could have next, the most probable first; a node
    comes after those before it in its draft."""
    ranked = []
    for row, totals in enumerate(gains):
        before, rank = 0.0, 1.0
        for total in totals[1:]:
            gain, before = total - before, total
            rank = min(rank, gain)
            ranked.append((-rank, gain, row))
    ranked.sort(key=lambda offer: offer[0])  # stable, so nodes stay in order
    return [(gain, row) for _, gain, row in ranked]


def tokens_at(gains: Seq[float], nodes: int) -> float:
    """The tokens expected from this many nodes; nodes beyond the draft's end add none."""
    return gains[nodes] if nodes < len(gains) else gains[-1]


def best_of(drafts: Seq[list[float]]) -> list[float]:
    """[n] the tokens expected from n nodes of the best of several drafts."""
    if len(drafts) <= 1:
        return drafts[0] if drafts else [0.0]
    return [max(tokens_at(gains, n) for gains in drafts) for n in range(max(map(len, drafts)))]


def _totals(gains: Seq[list[float]], own: Seq[list[float]] = ()) -> list[float]:
    """[n] the tokens of a step with n nodes for each sequence, which takes the better of a copy and
    what is computed."""
    if len(gains) == 1:
        return [1 + tokens for tokens in best_of([gains[0], *own])]
    longest = max(map(len, [*gains, *own]))
    return [_tokens(gains, length, own or gains, length) for length in range(longest)]


def _tokens(gains: Seq[list[float]], width: int, own: Seq[list[float]], length: int) -> float:
    """Tokens of a step in which each sequence takes the better of a copy and what is computed."""
    pairs = zip(gains, own, strict=True)
    return len(gains) + sum(max(tokens_at(a, width), tokens_at(b, length)) for a, b in pairs)


def _fastest_length(tokens: Seq[float], ms: Seq[float]) -> int:
    """The number of nodes with the most tokens a millisecond; the smallest, if several have it."""
    best = 0
    for length, (count, time) in enumerate(zip(tokens, ms, strict=False)):
        if count * ms[best] > tokens[best] * time:
            best = length
    return best
