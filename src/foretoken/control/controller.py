"""Which drafter drafts how much, or none: what `auto` decides at every step.

A step brings a token for each sequence and, of each node of its draft, the chance that this node is
accepted. It costs a pass, by the tokens of all sequences together, and the drafting. Chosen is what
brings most tokens a millisecond over the whole batch, so a larger batch gets shorter drafts.

There are two kinds of parts. A *scout* copies tokens at next to no cost. It is asked before the
choice, as long as its word pays for the asking, and what it said is held against the text that
came, whether it was drafted or not. A part that *computes* is asked only if it is chosen, for as
many nodes as were chosen, and at most one of them in a step, for the whole batch. What seems not to
pay is tried again, as far as the time that trials lose stays within a share of all time.

Nothing here looks at a drawn token: the choice follows from the text, the chosen drafts for it and
the past. It works on small lists, since a step has microseconds to spare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from foretoken.control.cost_model import CostModel
from foretoken.control.rates import Rates, Shape, View, chain, expected

_SAVED = 4.0  # time for trials is saved up to so many plain passes
_CONSIDER = 16  # steps from one thought of a trial, or of a part that computes, to the next;
_SELDOM = 32  # each thought in vain doubles them, up to so many
_HOPE = 1.5  # standard errors that a trial hopes for
_MEMORY = 0.05  # of what an asked scout saves, in the mean of what it saves
_SELDOM_ASKED = 0.25  # the same for one that is asked only now and then
_WELCOME = 16  # a new scout counts as if it had once saved what so many questions cost
_NOTHING = [0.0]


@dataclass(slots=True)
class Row:
    """A sequence at a step. room: the most nodes that it may draft. views: of the parts. found:
    what the scouts that were asked propose, by part, without those that have nothing to say.
    brings: the tokens that the first so many nodes of these bring, by part (the controller's)."""

    room: int
    views: Seq[View]
    found: Mapping[int, Shape] = field(default_factory=dict)
    brings: dict[int, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """takers: the part whose draft each sequence takes, or None; nodes: how many of it. ms: what
    the step is thought to take. trial: the tokens a millisecond that were given up to learn
    something, 0 where nothing was. due: whether a trial was thought of. saved: milliseconds that
    each scout's word is thought to save beside the others'."""

    takers: list[int | None]
    nodes: list[int]
    ms: float
    trial: float = 0.0
    due: bool = False
    saved: dict[int, float] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Nodes of the widest draft."""
        return max(self.nodes)

    def rows(self) -> dict[int, list[int]]:
        """The sequences that take a draft of each part."""
        found: dict[int, list[int]] = {}
        for row, taker in enumerate(self.takers):
            if taker is not None:
                found.setdefault(taker, []).append(row)
        return found


@dataclass(slots=True)
class _Plan:
    """tokens, ms: of the step. width: nodes of the widest draft. part: who computes `length` nodes
    for those whom `drawn` (tokens by nodes, for each sequence) promises more by it."""

    tokens: float
    ms: float
    width: int
    part: int | None = None
    length: int = 0
    drawn: Seq[list[float]] = ()

    @property
    def speed(self) -> float:
        return self.tokens / self.ms


class Controller:
    """The choice, step by step.

    names: the parts'. computing: which of them are no scouts. costs: of passes, and of drafts by
    the parts' names. most: nodes of a sequence's draft. share: of all time, that trials may lose.
    """

    def __init__(
        self,
        names: Seq[str],
        computing: Seq[int],
        costs: CostModel,
        *,
        most: int = 16,
        share: float = 0.01,
    ) -> None:
        self.names, self.computing, self.costs = list(names), list(computing), costs
        self.scouts = [part for part in range(len(names)) if part not in self.computing]
        self._most, self._share = most, share
        self.reset()

    def reset(self) -> None:
        """Forget what was seen of the parts; what things cost stays known."""
        self.rates = [Rates() for _ in self.names]
        self.shapes = [chain(self._most) for _ in self.names]  # of what would be computed
        self._saves = [_WELCOME * self.costs.drafts[name](1, 0) for name in self.names]  # by asking
        self._alone = [0.0] * len(self.names)  # tokens that a scout's word promised, on average
        self._asked = [1] * len(self.names)  # how often
        self._for_asking = self._for_trials = 0.0  # ms saved up
        self._rest = self._since_trial = self._since_thought = 0
        self._pause = _CONSIDER
        self._computed = True  # whether the last step was, or nothing is known

    def to_ask(self, sequences: int) -> list[int]:
        """The scouts that are worth asking for so many sequences, or are due to be asked again."""
        asked = []
        for part in self.scouts.copy():
            cost = self.costs.drafts[self.names[part]](sequences, 0)
            if self._saves[part] < cost:
                if self._for_asking < cost:
                    continue
                self._for_asking -= cost
                self.scouts.remove(part)
                self.scouts.append(part)  # the others' turn is next
            asked.append(part)
        return asked

    def rests(self, sequences: int) -> int:
        """Steps from now on, for the first of which no scout is asked, that are plain without
        further thought. Whoever takes them says so by `rested`."""
        if self._due or (not self._rest and self.computing):
            return 0
        earned = self._share / 2 * self.costs.passes(sequences, self._most)[0]
        steps = float(self._rest if self.computing else _SELDOM)
        for part in self.scouts if earned else ():
            lacks = self.costs.drafts[self.names[part]](sequences, 0) - self._for_asking
            steps = min(steps, lacks / earned)
        return max(1, int(steps))

    def rested(self, sequences: int, steps: int) -> None:
        """So many plain steps went by."""
        self._rest = max(0, self._rest - steps)
        self._since_trial += steps
        self._earn(steps * self.costs.passes(sequences, self._most)[0], sequences)

    @property
    def _due(self) -> bool:
        """Whether a trial may be thought of."""
        waited = self._since_trial >= self._pause
        return waited and self._for_trials > 0 and bool(self.computing)

    def choose(self, rows: Seq[Row]) -> Choice:
        """What brings most tokens a millisecond, or now and then what might."""
        due, words = self._due, any(row.found for row in rows)
        self._since_trial += 1
        if not due and not words and (self._rest or not self.computing):
            self._rest = max(0, self._rest - 1)
            plain = self.costs.passes(len(rows), self._most)[0]
            return Choice([None] * len(rows), [0] * len(rows), plain)
        for row in rows:
            row.brings = {part: self._expected(row, part, own) for part, own in row.found.items()}
        free = [_best_of(list(row.brings.values())) for row in rows]
        self._since_thought += 1
        thought = due or self._computed or self._since_thought >= _CONSIDER or not words
        if thought:
            self._since_thought = 0
        best = self._fastest(rows, free, self.computing if thought else ())
        choice = self._trial(rows, free, best) if due else None
        choice = choice or self._shared_out(rows, free, best)
        choice.due = due
        self._computed = any(taker in self.computing for taker in choice.takers)
        if self._computed:
            self._pause = _CONSIDER
        elif due:
            self._pause = min(2 * self._pause, _SELDOM)
        self._rest = 0 if any(choice.nodes) else self._pause
        return choice

    def thought(self, ms: float) -> None:
        """To think of a trial took so long; that is paid for like the trial."""
        self._for_trials -= ms

    def _expected(self, row: Row, part: int, shape: Shape, hope: float = 0.0) -> list[float]:
        found = expected(shape, self.rates[part], row.views[part], hope)
        return found[: min(row.room, self._most) + 1]

    def _fastest(
        self, rows: Seq[Row], free: Seq[list[float]], computing: Seq[int], hope: float = 0.0
    ) -> _Plan:
        """The fastest step in which at most one of these parts computes."""
        count = len(rows)
        passes = self.costs.passes(count, self._most)
        tokens = _totals(free)
        width = _quickest(tokens, passes)
        best = _Plan(tokens[width], passes[width], width)
        for part in computing:
            drawn = [self._expected(row, part, self.shapes[part], hope) for row in rows]
            tokens, levels = _totals(free, drawn), self.shapes[part].reach
            cost = self.costs.drafts[self.names[part]]
            ms = [
                cost.call * count + cost.level * level + alone
                for level, alone in zip(levels, passes, strict=False)
            ]
            n = _quickest(tokens, ms)
            if not n or tokens[n] * best.ms <= best.tokens * ms[n]:
                continue
            best = _Plan(tokens[n], ms[n], n, part, n, drawn)
            # Copies for the others may be longer than what is computed.
            for width in range(n + 1, max(map(len, free)) if count > 1 else 0):
                wider = ms[n] + passes[width] - passes[n]
                plan = _Plan(_tokens(free, width, drawn, n), wider, width, part, n, drawn)
                best = plan if plan.speed > best.speed else best
        return best

    def _trial(self, rows: Seq[Row], free: Seq[list[float]], best: _Plan) -> Choice | None:
        """A step that would be faster if a part did better than it has, where it can be paid for.

        What was not tested lately is known less and less, so that at some time it is tried.
        """
        for part in self.computing:
            self.rates[part].forget(self._pause // _CONSIDER)
        self._since_trial = 0
        hoped = self._fastest(rows, free, self.computing, _HOPE)
        if hoped.part is None or hoped.speed <= best.speed:
            return None
        drawn = [self._expected(row, hoped.part, self.shapes[hoped.part]) for row in rows]
        tokens = _tokens(free, hoped.width, drawn, hoped.length)
        if hoped.ms - tokens / best.speed > self._for_trials:
            return None
        choice = self._shared_out(rows, free, hoped)
        choice.trial = best.speed
        return choice

    def _shared_out(self, rows: Seq[Row], free: Seq[list[float]], plan: _Plan) -> Choice:
        """Each sequence's draft in a plan."""
        choice = Choice([], [], plan.ms)
        for place, row in enumerate(rows):
            copied = _at(free[place], plan.width)
            taker, nodes = self._scout(row, plan.width) if copied > 0 else (None, 0)
            if plan.part is not None and _at(plan.drawn[place], plan.length) > copied:
                taker, nodes = plan.part, min(plan.length, row.room)
            choice.takers.append(taker)
            choice.nodes.append(nodes)
        choice.saved = self._saved(rows, choice, plan)
        return choice

    def _scout(self, row: Row, width: int) -> tuple[int | None, int]:
        """The scout whose first `width` nodes bring most, and how many of them bring anything."""
        part = max(row.brings, key=lambda part: _at(row.brings[part], width))
        return part, min(width, len(row.brings[part]) - 1)

    def _saved(self, rows: Seq[Row], choice: Choice, plan: _Plan) -> dict[int, float]:
        """What each scout's word saves, those first that promised most until now: what two of them
        say counts once."""
        found = {part: 0.0 for row in rows for part in row.brings}
        if not plan.width or not found:
            return found
        known = [0.0] * len(rows)
        for part in sorted(found, key=lambda part: -self._alone[part]):
            alone = 0.0
            for place, row in enumerate(rows):
                tokens = _at(row.brings.get(part, _NOTHING), plan.width)
                alone += tokens
                if tokens > known[place] and choice.takers[place] not in (None, plan.part):
                    found[part] += tokens - known[place]
                    known[place] = tokens
            self._alone[part] += _MEMORY * (alone / len(rows) - self._alone[part])
        drafts = sum(map(bool, choice.nodes)) or 1
        passes = self.costs.passes(len(rows), self._most)
        wider = (passes[plan.width] - passes[plan.length]) / drafts
        each = plan.ms / plan.tokens
        return {p: tokens * each - wider * (tokens > 0) for p, tokens in found.items()}

    def done(
        self, choice: Choice, asked: Iterable[int], kept: Seq[int], dearer: float = 0.0
    ) -> None:
        """How the step went: the accepted tokens of each sequence, who had been asked, and by how
        many milliseconds drafting took longer than thought (a model that rested has to catch up).
        """
        self._earn(choice.ms, len(kept))
        if choice.trial:
            self._for_trials -= choice.ms + dearer - (len(kept) + sum(kept)) / choice.trial
        for part in asked:
            self._asked[part] += 1
            cost = self.costs.drafts[self.names[part]](len(kept), 0)
            least = _MEMORY if self._saves[part] >= cost else _SELDOM_ASKED
            share = max(least, 1 / self._asked[part])
            self._saves[part] += share * (choice.saved.get(part, 0.0) - self._saves[part])

    def _earn(self, ms: float, sequences: int) -> None:
        """A step's share of time for asking and for trials."""
        most, share = _SAVED * self.costs.passes(sequences, self._most)[0], self._share / 2 * ms
        self._for_asking = min(most, self._for_asking + share)
        self._for_trials = min(most, self._for_trials + share)


def _quickest(tokens: Seq[float], ms: Seq[float]) -> int:
    """The length with most tokens a millisecond, of equals the shortest."""
    found = 0
    for length, (some, time) in enumerate(zip(tokens, ms, strict=False)):
        if some * ms[found] > tokens[found] * time:
            found = length
    return found


def _best_of(each: Seq[list[float]]) -> list[float]:
    """What the best of several drafts brings by its first so many nodes."""
    if len(each) <= 1:
        return each[0] if each else _NOTHING
    return [max(_at(one, n) for one in each) for n in range(max(map(len, each)))]


def _totals(free: Seq[list[float]], drawn: Seq[list[float]] = ()) -> list[float]:
    """Tokens of a step by length, where each sequence takes the better of a copy and what is
    computed, both so long."""
    if len(free) == 1:
        return [1 + tokens for tokens in _best_of([free[0], *drawn])]
    longest = max(map(len, [*free, *drawn]))
    each = drawn or free
    return [_tokens(free, length, each, length) for length in range(longest)]


def _at(totals: Seq[float], nodes: int) -> float:
    """What so many nodes bring; more than there are bring no more."""
    return totals[nodes] if nodes < len(totals) else totals[-1]


def _tokens(free: Seq[list[float]], width: int, drawn: Seq[list[float]], length: int) -> float:
    """Of a step in which each sequence takes the better of a copy and what is computed."""
    pairs = zip(free, drawn, strict=True)
    return len(free) + sum(max(_at(copy, width), _at(own, length)) for copy, own in pairs)
