"""The cost of a decoding loop's steps: passes of the target by their tokens, and drafting.

Costs are measured beforehand and corrected by real steps. A step's time, compared with the expected
one, shows two things: how fast the machine is now (the median of the last few steps), and how the
cost of this kind of step compares with the others' (learned slowly). So a machine that slows down
as a whole changes no choice. What was learned of a drafter counts for less the longer ago it was:
one that was expensive for a while is then hoped to cost what was measured, and retried.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import MappingProxyType

from foretoken.control.curve import Curve

_RECENT = 9  # steps whose median gives the speed of the machine
_SLOWEST = 0.05  # least share of a surprise that corrects the step's own cost
_CLIP = 0.5  # nats; a larger surprise is cut to this, since a pause is not a cost
_REBUILD_EVERY = 8  # steps, after which curve and tables are computed again
_FORGET = 0.9  # share of a draft's timings that still counts after `forget`


@dataclass(frozen=True)
class DraftCost:
    """Milliseconds of a draft: `call` for each sequence, and `level` for each level of the draft,
    however many sequences there are."""

    call: float = 0.0
    level: float = 0.0

    def __call__(self, sequences: int, levels: float) -> float:
        return self.call * sequences + self.level * levels

    def times(self, factor: float) -> DraftCost:
        return DraftCost(self.call * factor, self.level * factor)


def unmeasured(plain_ms: float, draws: bool) -> DraftCost:
    """The cost assumed for a drafter: a tenth of a pass a level if it draws, else a hundredth of a
    pass a draft."""
    return DraftCost(level=0.1 * plain_ms) if draws else DraftCost(call=0.01 * plain_ms)


class CostModel:
    """Milliseconds of passes by their total tokens, and of drafts by the drafter's name.

    target: measured passes, e.g. {1: 30.0, 8: 33.0, 64: 60.0}. drafts: a `DraftCost` for each
    drafter. of: what each drafter's acceptance depends on, in words that name target and drafter,
    where that is known. per_cell: milliseconds in which a pass reads one token's keys and values in
    the cache. packed: a batch's padding costs nothing; else its widest row's nodes count for all
    rows. fixed: real steps correct nothing. Raises `ForetokenError` as `Curve` does.
    """

    def __init__(
        self,
        target: Mapping[int, float],
        drafts: Mapping[str, DraftCost],
        *,
        of: Mapping[str, str] = MappingProxyType({}),
        per_cell: float = 0.0,
        packed: bool = False,
        fixed: bool = False,
    ) -> None:
        self.curve = Curve(dict(target))
        self.drafts, self.of = dict(drafts), of
        self.per_cell, self.packed = per_cell, packed
        self._fixed = fixed
        self._recent: deque[float] = deque(maxlen=_RECENT)  # log of real over expected time
        self._sizes = sorted(target)
        self._ms = [target[size] for size in self._sizes]
        self._measurements: dict[int | str, float] = {}  # of each cost, counted
        self._learned = dict.fromkeys(drafts, 0.0)  # nats by which drafts are dearer than measured
        self._table: list[float] = []
        self._tables: dict[tuple[int, int], list[float]] = {}
        self._steps = 0

    def passes(self, sequences: int, most: int) -> list[float]:
        """[most + 1] milliseconds of a pass over this many sequences with 0 … `most` nodes each,
        without reading the cache."""
        key = sequences, most
        if key not in self._tables:
            self._tables[key] = self.sizes(sequences * (1 + most))[sequences::sequences][: most + 1]
        return self._tables[key]

    def sizes(self, most: int) -> list[float]:
        """[at least most + 1] milliseconds of a pass by its tokens, all sequences together."""
        if len(self._table) <= most:
            self._table = self.curve.upto(most)
        return self._table

    def size(self, nodes: Seq[int]) -> int:
        """Tokens that a pass computes over drafts of so many nodes."""
        return len(nodes) + (sum(nodes) if self.packed else len(nodes) * max(nodes))

    def record_pass_time(self, tokens: int, ms: float, cells: int = 0) -> None:
        """Learn from a real pass over this many tokens, all sequences together, that read so many
        cells of the cache."""
        if self._fixed or ms <= 0:
            return
        at, share = self._near(tokens)
        expected = self._known(at, share) + self.per_cell * cells
        self._recent.append(math.log(ms / expected))
        surprise = self._surprise(ms, expected)
        for place, weight in ((at - 1, 1 - share), (at, min(1.0, share))):
            if weight > 0:
                self._ms[place] *= math.exp(self._rate(place) * weight * surprise)
        self._steps += 1
        if self._steps % _REBUILD_EVERY == 0:
            self.curve = Curve(dict(zip(self._sizes, self._ms, strict=True)))
            self._table = []
            self._tables.clear()

    def extra_ms(self, name: str, sequences: int, levels: int, ms: float) -> float:
        """By how many milliseconds a real draft took longer than expected, given the machine's
        present speed; negative where it took less."""
        expected = self.drafts[name](sequences, levels) * math.exp(self._pace)
        return 0.0 if self._fixed else (ms - expected) / math.exp(self._pace)

    def record_draft_time(self, name: str, sequences: int, levels: int, ms: float) -> None:
        """Learn from a real draft."""
        expected = self.drafts[name](sequences, levels)
        if not self._fixed and ms > 0 and expected > 0:
            self._learn(name, self._rate(name) * self._surprise(ms, expected))

    def record_computed(
        self, name: str, sequences: int, levels: int, ms: float, unread: int
    ) -> None:
        """Learn from a real draft for which at most so many tokens of a sequence were read. How
        long reading more than one takes is guessed: then the cost can only fall, back to what was
        measured at most."""
        if unread <= 1:
            self.record_draft_time(name, sequences, levels, ms)
            return
        wider = self.curve(sequences * unread) / self.curve(sequences) - 1
        expected = self.drafts[name](sequences, levels + wider)
        if not self._fixed and ms > 0 and expected > 0:
            nats = self._rate(name) * self._surprise(ms, expected)
            self._learn(name, min(0.0, max(nats, -self._learned[name])))

    def forget(self, name: str, times: int = 1) -> None:
        """Let what was learned of a draft's cost count for less."""
        self._measurements[name] = _FORGET**times * self._measurements.get(name, 0)

    def hoped(self, name: str) -> DraftCost:
        """What a draft may cost: what was learned or, where that is more and hardly counts any
        longer, what was measured."""
        doubted = max(0.0, self._learned[name]) / (1 + self._measurements.get(name, 0))
        return self.drafts[name].times(math.exp(-doubted))

    def _learn(self, name: str, nats: float) -> None:
        self._learned[name] += nats
        self.drafts[name] = self.drafts[name].times(math.exp(nats))

    def _known(self, at: int, share: float) -> float:
        """Milliseconds there, as `_near` has it. Beyond the last measured size a pass takes no
        less, also where the one before happened to take longer."""
        within = min(1.0, share)
        between = self._ms[at - 1] * (1 - within) + self._ms[at] * within
        return between + max(0.0, self._ms[at] - self._ms[at - 1]) * (share - within)

    def _near(self, tokens: int) -> tuple[int, float]:
        """(i, s): the size lies between the measured sizes i - 1 and i, at a share s of the way;
        beyond the last one s is more than 1."""
        sizes = self._sizes
        if tokens <= sizes[0] or len(sizes) == 1:
            return 0, 1.0
        at = next((i for i, size in enumerate(sizes) if size >= tokens), len(sizes) - 1)
        return at, (tokens - sizes[at - 1]) / (sizes[at] - sizes[at - 1])

    def _surprise(self, ms: float, expected: float) -> float:
        return min(_CLIP, max(-_CLIP, math.log(ms / expected) - self._pace))

    @property
    def _pace(self) -> float:
        """How much slower the machine is now than when it was measured, in nats."""
        return sorted(self._recent)[len(self._recent) // 2] if self._recent else 0.0

    def _rate(self, key: int | str) -> float:
        """The learning rate of a cost for its next measurement; the first ones move it most."""
        self._measurements[key] = self._measurements.get(key, 0) + 1
        return max(_SLOWEST, 1 / (3 + self._measurements[key]))


def assumed(draws: Mapping[str, bool]) -> CostModel:
    """The costs where none were measured: a nearly flat curve. draws: whether each drafter does."""
    drafts = {name: unmeasured(1.0, drawn) for name, drawn in draws.items()}
    return CostModel({1: 1.0, 64: 1.5}, drafts, fixed=True)
