"""Which drafter drafts how much, or none: what `auto` decides at every step.

A step yields one token for each sequence and, for each node of its draft, the chance that this node
is accepted. It costs a pass, which depends on the tokens of all sequences together, and the
drafting. The choice is what yields most tokens a millisecond over the whole batch, so a larger
batch gets shorter drafts.

There are two kinds of drafters here. A *copier* copies tokens at next to no cost. It is queried
before the choice as long as its drafts save more than the query costs, and its draft is compared
with the text that follows, whether it was used or not. A drafter that *computes* is run only if it
is chosen, for as many nodes as were chosen, and at most one of them in a step, for the whole batch.
What seems not to pay is tried again as long as the time lost by trials stays within a share of all
time.

Nothing here looks at a drawn token: the choice follows from the text, the chosen drafts for it and
the past. It works on small lists, since a step has microseconds to spare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from foretoken.control.cost_model import CostModel
from foretoken.control.rates import History, Rates, Shape, chain, expected

_BUDGET_PASSES = 4.0  # the time set aside for trials or queries, at most, in plain passes
_TRIAL_PAUSE = 16  # steps between two considered trials, or looks at drafters that compute;
_LONGEST_PAUSE = 32  # each trial that is not made doubles the pause, up to this many steps
_OPTIMISM = 1.5  # standard errors that a trial adds to the acceptance rates
_SAVING_RATE = 0.05  # weight of the latest query in the mean of what a copier saves
_RARE_RATE = 0.25  # the same for a copier that is queried only now and then
_FIRST_QUERIES = 16  # a new copier counts as if it had saved the cost of this many queries
_NOTHING = [0.0]


@dataclass(slots=True)
class Row:
    """A sequence at a step. room: the most nodes that it may draft. histories: one for each
    drafter. copies: the drafts of the copiers that were queried and have one, by drafter. gains: by
    drafter, [n] the tokens expected from the first n nodes of its copy (set by the controller)."""

    room: int
    histories: Seq[History]
    copies: Mapping[int, Shape] = field(default_factory=dict)
    gains: dict[int, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """takers: the drafter whose draft each sequence takes, or None; nodes: how many nodes of it.
    ms: the expected time of the step. trial: the tokens a millisecond given up by a trial, 0 if the
    step is none. due: whether a trial was considered. saved: milliseconds that each copier's draft
    is expected to save in addition to the other copiers'."""

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
        """The sequences that take a draft, by drafter."""
        rows: dict[int, list[int]] = {}
        for row, taker in enumerate(self.takers):
            if taker is not None:
                rows.setdefault(taker, []).append(row)
        return rows


@dataclass(slots=True)
class _Plan:
    """tokens, ms: of the step. width: nodes of the widest draft. part: the drafter that computes
    `length` nodes for the sequences that gain more by it than by a copy. drawn: for each sequence,
    [n] the tokens expected from n computed nodes."""

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

    names: of the drafters. computing: the indices of those that are not copiers. costs: of passes,
    and of drafts by name. most: nodes of a sequence's draft. share: of all time, that trials and
    queries may lose.
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
        self.copiers = [part for part in range(len(names)) if part not in self.computing]
        self._most, self._share = most, share
        self.reset()

    def reset(self) -> None:
        """Forget acceptance rates; costs stay known."""
        self.rates = [Rates() for _ in self.names]
        self.shapes = [chain(self._most) for _ in self.names]  # of what each would compute
        self._savings = [
            _FIRST_QUERIES * self.costs.drafts[name](1, 0) for name in self.names
        ]  # ms
        self._promised = [0.0] * len(self.names)  # mean tokens expected from a copy
        self._queries = [1] * len(self.names)
        self._query_budget = self._trial_budget = 0.0  # ms
        self._idle = self._since_trial = self._since_look = 0
        self._pause = _TRIAL_PAUSE
        self._computed = True  # whether the last step was computed, or nothing is known

    def copiers_to_query(self, sequences: int) -> list[int]:
        """The copiers whose query pays for this many sequences, or that are due for another one."""
        queried = []
        for part in self.copiers.copy():
            cost = self.costs.drafts[self.names[part]](sequences, 0)
            if self._savings[part] < cost:
                if self._query_budget < cost:
                    continue
                self._query_budget -= cost
                self.copiers.remove(part)
                self.copiers.append(part)  # the others are next
            queried.append(part)
        return queried

    def idle_steps(self, sequences: int) -> int:
        """How many of the next steps are plain without a decision, where no copier is queried now.
        The caller reports them by `idled`."""
        if self._due or (not self._idle and self.computing):
            return 0
        earned = self._share / 2 * self.costs.passes(sequences, self._most)[0]
        steps = float(self._idle if self.computing else _LONGEST_PAUSE)
        for part in self.copiers if earned else ():
            missing = self.costs.drafts[self.names[part]](sequences, 0) - self._query_budget
            steps = min(steps, missing / earned)
        return max(1, int(steps))

    def idled(self, sequences: int, steps: int) -> None:
        """This many plain steps were made."""
        self._idle = max(0, self._idle - steps)
        self._since_trial += steps
        self._earn(steps * self.costs.passes(sequences, self._most)[0], sequences)

    @property
    def _due(self) -> bool:
        """Whether a trial may be considered."""
        waited = self._since_trial >= self._pause
        return waited and self._trial_budget > 0 and bool(self.computing)

    def choose(self, rows: Seq[Row]) -> Choice:
        """The fastest step by all that is known, or now and then a trial of what might be
        faster."""
        due, copied = self._due, any(row.copies for row in rows)
        self._since_trial += 1
        if not due and not copied and (self._idle or not self.computing):
            self._idle = max(0, self._idle - 1)
            plain = self.costs.passes(len(rows), self._most)[0]
            return Choice([None] * len(rows), [0] * len(rows), plain)
        for row in rows:
            row.gains = {part: self._expected(row, part, own) for part, own in row.copies.items()}
        free = [_best_of(list(row.gains.values())) for row in rows]
        self._since_look += 1
        look = due or self._computed or self._since_look >= _TRIAL_PAUSE or not copied
        if look:
            self._since_look = 0
        best = self._fastest(rows, free, self.computing if look else ())
        choice = self._trial(rows, free, best) if due else None
        choice = choice or self._assigned(rows, free, best)
        choice.due = due
        self._computed = any(taker in self.computing for taker in choice.takers)
        if self._computed:
            self._pause = _TRIAL_PAUSE
        elif due:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._idle = 0 if any(choice.nodes) else self._pause
        return choice

    def charge_trial(self, ms: float) -> None:
        """Considering a trial took this long, which is paid for like a trial."""
        self._trial_budget -= ms

    def _expected(self, row: Row, part: int, shape: Shape, hope: float = 0.0) -> list[float]:
        tokens = expected(shape, self.rates[part], row.histories[part], hope)
        return tokens[: min(row.room, self._most) + 1]

    def _fastest(
        self, rows: Seq[Row], free: Seq[list[float]], computing: Seq[int], hope: float = 0.0
    ) -> _Plan:
        """The fastest step in which at most one of these drafters computes."""
        count = len(rows)
        passes = self.costs.passes(count, self._most)
        tokens = _totals(free)
        width = _fastest_length(tokens, passes)
        best = _Plan(tokens[width], passes[width], width)
        for part in computing:
            drawn = [self._expected(row, part, self.shapes[part], hope) for row in rows]
            tokens, levels = _totals(free, drawn), self.shapes[part].reach
            cost = self.costs.drafts[self.names[part]]
            ms = [
                cost.call * count + cost.level * level + alone
                for level, alone in zip(levels, passes, strict=False)
            ]
            n = _fastest_length(tokens, ms)
            if not n or tokens[n] * best.ms <= best.tokens * ms[n]:
                continue
            best = _Plan(tokens[n], ms[n], n, part, n, drawn)
            # Copies for the other sequences may be longer than what is computed.
            for width in range(n + 1, max(map(len, free)) if count > 1 else 0):
                wider = ms[n] + passes[width] - passes[n]
                plan = _Plan(_tokens(free, width, drawn, n), wider, width, part, n, drawn)
                best = plan if plan.speed > best.speed else best
        return best

    def _trial(self, rows: Seq[Row], free: Seq[list[float]], best: _Plan) -> Choice | None:
        """A step that would be faster if a drafter did better than it has, if the budget allows it.

        Counts of drafters that were not run lately fade, so that each is tried again at some time.
        """
        for part in self.computing:
            self.rates[part].forget(self._pause // _TRIAL_PAUSE)
        self._since_trial = 0
        hoped = self._fastest(rows, free, self.computing, _OPTIMISM)
        if hoped.part is None or hoped.speed <= best.speed:
            return None
        drawn = [self._expected(row, hoped.part, self.shapes[hoped.part]) for row in rows]
        tokens = _tokens(free, hoped.width, drawn, hoped.length)
        if hoped.ms - tokens / best.speed > self._trial_budget:
            return None
        choice = self._assigned(rows, free, hoped)
        choice.trial = best.speed
        return choice

    def _assigned(self, rows: Seq[Row], free: Seq[list[float]], plan: _Plan) -> Choice:
        """The plan's draft for each sequence."""
        choice = Choice([], [], plan.ms)
        for place, row in enumerate(rows):
            copied = _tokens_at(free[place], plan.width)
            taker, nodes = self._best_copier(row, plan.width) if copied > 0 else (None, 0)
            if plan.part is not None and _tokens_at(plan.drawn[place], plan.length) > copied:
                taker, nodes = plan.part, min(plan.length, row.room)
            choice.takers.append(taker)
            choice.nodes.append(nodes)
        choice.saved = self._saved(rows, choice, plan)
        return choice

    def _best_copier(self, row: Row, width: int) -> tuple[int | None, int]:
        """The copier whose first `width` nodes yield most tokens, and how many of them yield
        any."""
        part = max(row.gains, key=lambda part: _tokens_at(row.gains[part], width))
        return part, min(width, len(row.gains[part]) - 1)

    def _saved(self, rows: Seq[Row], choice: Choice, plan: _Plan) -> dict[int, float]:
        """Milliseconds that each copier's draft saves. What two copiers draft alike counts once,
        for the one from which more has been expected so far."""
        added = {part: 0.0 for row in rows for part in row.gains}
        if not plan.width or not added:
            return added
        known = [0.0] * len(rows)
        for part in sorted(added, key=lambda part: -self._promised[part]):
            alone = 0.0
            for place, row in enumerate(rows):
                tokens = _tokens_at(row.gains.get(part, _NOTHING), plan.width)
                alone += tokens
                if tokens > known[place] and choice.takers[place] not in (None, plan.part):
                    added[part] += tokens - known[place]
                    known[place] = tokens
            self._promised[part] += _SAVING_RATE * (alone / len(rows) - self._promised[part])
        drafts = sum(map(bool, choice.nodes)) or 1
        passes = self.costs.passes(len(rows), self._most)
        wider = (passes[plan.width] - passes[plan.length]) / drafts
        each = plan.ms / plan.tokens
        return {p: tokens * each - wider * (tokens > 0) for p, tokens in added.items()}

    def record_step(
        self, choice: Choice, queried: Iterable[int], accepted: Seq[int], extra_ms: float = 0.0
    ) -> None:
        """How the step went: the accepted tokens of each sequence, the copiers that were queried,
        and by how many milliseconds drafting took longer than expected (a model that was not run
        for a while reads what it missed first).
        """
        self._earn(choice.ms, len(accepted))
        if choice.trial:
            self._trial_budget -= (
                choice.ms + extra_ms - (len(accepted) + sum(accepted)) / choice.trial
            )
        for part in queried:
            self._queries[part] += 1
            cost = self.costs.drafts[self.names[part]](len(accepted), 0)
            least = _SAVING_RATE if self._savings[part] >= cost else _RARE_RATE
            share = max(least, 1 / self._queries[part])
            self._savings[part] += share * (choice.saved.get(part, 0.0) - self._savings[part])

    def _earn(self, ms: float, sequences: int) -> None:
        """Add a step's share of time to the budgets for queries and for trials."""
        most, share = (
            _BUDGET_PASSES * self.costs.passes(sequences, self._most)[0],
            self._share / 2 * ms,
        )
        self._query_budget = min(most, self._query_budget + share)
        self._trial_budget = min(most, self._trial_budget + share)


def _fastest_length(tokens: Seq[float], ms: Seq[float]) -> int:
    """The length with most tokens a millisecond, the shortest of equals."""
    best = 0
    for length, (count, time) in enumerate(zip(tokens, ms, strict=False)):
        if count * ms[best] > tokens[best] * time:
            best = length
    return best


def _best_of(each: Seq[list[float]]) -> list[float]:
    """[n] the tokens expected from n nodes of the best of several drafts."""
    if len(each) <= 1:
        return each[0] if each else _NOTHING
    return [max(_tokens_at(one, n) for one in each) for n in range(max(map(len, each)))]


def _totals(free: Seq[list[float]], drawn: Seq[list[float]] = ()) -> list[float]:
    """[n] the tokens of a step with n nodes for each sequence, which takes the better of a copy and
    what is computed."""
    if len(free) == 1:
        return [1 + tokens for tokens in _best_of([free[0], *drawn])]
    longest = max(map(len, [*free, *drawn]))
    each = drawn or free
    return [_tokens(free, length, each, length) for length in range(longest)]


def _tokens_at(totals: Seq[float], nodes: int) -> float:
    """The tokens expected from this many nodes; more than there are add none."""
    return totals[nodes] if nodes < len(totals) else totals[-1]


def _tokens(free: Seq[list[float]], width: int, drawn: Seq[list[float]], length: int) -> float:
    """Tokens of a step in which each sequence takes the better of a copy and what is computed."""
    pairs = zip(free, drawn, strict=True)
    return len(free) + sum(
        max(_tokens_at(copy, width), _tokens_at(own, length)) for copy, own in pairs
    )
