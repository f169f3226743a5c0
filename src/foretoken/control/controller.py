"""Decides for `auto` at every step which drafter drafts how many nodes, if any.

A step yields one token for each sequence and, for each node of its draft, the chance that this node
is accepted. It costs a pass, which depends on the tokens of all sequences together, and the
drafting. The choice yields the most tokens a millisecond over the whole batch, so a larger batch
gets shorter drafts.

There are two kinds of drafters here. A *copier* copies tokens at next to no cost. It is queried
before the choice as long as its drafts save more than the query costs, and its draft is compared
with the text that follows, whether it was used or not. A drafter that *computes* is run only if it
is chosen, for as many nodes as were chosen, and at most one of them in a step, for the whole batch.
A drafter that seems not to pay is tried again now and then; the time that trials lose stays within
a share of all time.

The choice never depends on a drawn token, only on the text, the copiers' drafts for it and the
past. It is computed on short lists, since a step has only microseconds to spare.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace

from foretoken.control.choice import Choice, Row
from foretoken.control.cost_model import CostModel
from foretoken.control.plans import Packed, Padded, Plan, Planner, best_of, tokens_at
from foretoken.control.priors import prior_of
from foretoken.control.rates import History, Levels, Rates, Shape, chain, expected

_BUDGET_PASSES = 4.0  # the most time saved up for trials, or for queries, in plain passes
_USES = 8  # drafts over which it is spread what a model reads that did not run for a while
_ANSWER = 256  # tokens that an answer without `max_tokens` is expected to have
_TRIAL_PAUSE = 16  # steps between considering two trials, or drafters that compute;
_LONGEST_PAUSE = 32  # each trial that is not made doubles the pause, up to this many steps
_IDLE = 128  # most plain steps after a decision that took long
_OPTIMISM = 1.5  # standard errors that a trial adds to the acceptance rates
_SAVING_RATE = 0.05  # weight of the latest query in the mean of what a copier saves
_RARE_RATE = 0.25  # the same for a copier that is queried only now and then
_WORTHWHILE = 1.5  # queries' costs that a query must save, as drafts look better than they are
_FIRST_QUERIES = 16  # a new copier counts as if it had saved the cost of this many queries
_SHAPES = 8  # trees of which the largest is taken for a drafter's, where none fills its room
_NO_GAIN = [0.0]


class Controller:
    """Chooses at every step, and learns from how it went.

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
        self.rates = [Rates(prior=prior_of(name)) for name in self.names]
        self.shapes = [chain(self._most) for _ in self.names]  # of what each would compute
        self._seen = [0] * len(self.names)  # trees that shapes were learned from
        self._levels = [Levels() for _ in self.names]
        every = range(len(self.names))
        self._savings = [_FIRST_QUERIES * self._query_ms(part, 1) for part in every]  # ms
        self._promised = [0.0] * len(self.names)  # mean tokens expected from a copy
        self._queries = [1] * len(self.names)
        self._uncopied = 1.0  # tokens a millisecond of steps without copies, in those of plain ones
        self._query_budget = self._trial_budget = 0.0  # ms
        self._saved_up = 0.0  # ms for reading and dear drafts of the latest trial, if too dear
        self._idle = self._since_trial = self._since_look = 0
        self._pause = _TRIAL_PAUSE
        self._computed = True  # whether a part computed in the last step; true at first
        self._padded = Padded(self.costs, self._most)
        self._packed = Packed(self.costs, self._most) if self.costs.packed else None

    def unshaped(self, part: int) -> bool:
        """Whether its trees are to be made as large as there is room for, to learn their shape."""
        return self._seen[part] < _SHAPES

    def learn_shape(self, part: int, shape: Shape, most: int) -> None:
        """Learn from a tree that had room for `most` nodes; the largest counts. One without nodes
        that may be accepted says nothing."""
        if any(parent >= 0 for parent in shape.parents):
            if not self._seen[part] or len(shape) > len(self.shapes[part]):
                self.shapes[part] = shape
            self._seen[part] += _SHAPES if len(shape) >= most else 1

    def copiers_to_query(self, sequences: int) -> list[int]:
        """The copiers whose query pays for this many sequences, or that are due for another one."""
        queried = []
        for part in self.copiers.copy():
            cost = self._query_ms(part, sequences)
            if self._savings[part] < _WORTHWHILE * cost:
                if self._query_budget < cost:
                    continue
                self._query_budget -= cost
                self.copiers.remove(part)
                self.copiers.append(part)  # so that the others are queried next
            queried.append(part)
        return queried

    def _query_ms(self, part: int, sequences: int) -> float:
        """What a query of a copier costs, which is asked for the longest draft."""
        return self.costs.drafts[self.names[part]](sequences, self._most)

    def idle_steps(self, sequences: int) -> int:
        """How many of the next steps may be plain ones without a decision, given that no copier is
        queried now. The caller reports those that it makes by `idled`."""
        if self._due or (not self._idle and self.computing):
            return 0
        earned = self._share / 2 * self.costs.passes(sequences, self._most)[0]
        steps = float(self._idle if self.computing else _LONGEST_PAUSE)
        for part in self.copiers if earned else ():
            missing = self._query_ms(part, sequences) - self._query_budget
            steps = min(steps, missing / earned)
        return max(1, int(steps))

    def idled(self, sequences: int, steps: int) -> None:
        """Account for this many plain steps without a decision."""
        self._idle = max(0, self._idle - steps)
        self._since_trial += steps
        self._count(sequences, 1.0, 1.0, steps)
        self._earn(steps * self.costs.passes(sequences, self._most)[0], sequences)

    @property
    def _due(self) -> bool:
        """Whether a trial may be considered."""
        waited = self._since_trial >= self._pause
        return waited and self._trial_budget > 0 and bool(self.computing)

    def choose(self, rows: Seq[Row]) -> Choice:
        """The step that is expected to be fastest, or now and then a trial of another one."""
        due, copied = self._due, any(row.copies for row in rows)
        self._since_trial += 1
        if not due and not copied and (self._idle or not self.computing):
            self._idle = max(0, self._idle - 1)
            plain = self.costs.passes(len(rows), self._most)[0]
            self._count(len(rows), 1.0, 1.0)
            return Choice([None] * len(rows), [0] * len(rows), plain + self._reading(rows))
        if len(rows) == len(rows[0].copies) == 1 and not self.computing:
            return self._alone(rows[0])
        for row in rows:
            row.gains = {part: self._expected(row, part, copy) for part, copy in row.copies.items()}
        copied_gains = [best_of(list(row.gains.values())) for row in rows]
        self._since_look += 1
        look = due or self._computed or self._since_look >= _TRIAL_PAUSE or not copied
        if look:
            self._since_look = 0
        best = self._best(rows, copied_gains, self.computing if look else ())
        plain = self.costs.passes(len(rows), self._most)[0] + self._reading(rows)
        self._count(len(rows), best.tokens / len(rows), best.ms / plain)
        choice = self._trial(rows, copied_gains, best) if due else None
        choice = choice or self._assigned(rows, copied_gains, best)
        choice.due = due
        self._computed = any(taker in self.computing for taker in choice.takers)
        if not choice.trial and all(t is None or t in self.computing for t in choice.takers):
            faster = best.tokens / len(rows) * plain / best.ms
            self._uncopied += _SAVING_RATE * (faster - self._uncopied)
        if self._computed:
            self._pause = _TRIAL_PAUSE
        elif due:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._idle = 0 if any(choice.nodes) else self._pause
        return choice

    def _alone(self, row: Row) -> Choice:
        """The fastest step of one sequence with one copy, and nothing that computes. It is what
        `_best` finds, in half of its time: a small target's pass takes a few milliseconds."""
        ((part, shape),) = row.copies.items()
        gains, passes = self._expected(row, part, shape), self.costs.passes(1, self._most)
        reading = self.costs.per_cell * row.length
        ms, tokens, nodes = passes[0] + reading, 1.0, 0
        for count, gain in enumerate(gains):
            time = passes[count] + reading
            if (1 + gain) * ms > tokens * time:
                ms, tokens, nodes = time, 1 + gain, count
        if not nodes:
            return Choice([None], [0], ms, saved={part: 0.0})
        copied = tokens - 1
        saved = copied * (passes[0] + reading) - (ms - passes[0] - reading)
        self._promised[part] += _SAVING_RATE * (copied - self._promised[part])
        return Choice([part], [nodes], ms, saved={part: saved})

    def _planner(self, sequences: int) -> Planner:
        return self._padded if sequences == 1 or self._packed is None else self._packed

    def _count(self, sequences: int, tokens: float, ms: float, steps: int = 1) -> None:
        """Count steps that are taken: what each yields and how long it takes, in plain steps."""
        if self._packed is not None and sequences > 1:
            self._packed.count(tokens, ms, steps)

    def _reading(self, rows: Seq[Row]) -> float:
        """Milliseconds in which a pass reads what the cache has of these sequences."""
        return self.costs.per_cell * sum(row.length for row in rows)

    def reads(
        self, part: int, sequences: int, prompt: int, answer: int | None, sampled: bool = False
    ) -> bool:
        """Whether a part that computes is to read a prompt of so many tokens now, together with the
        target: whether it is expected to draft, and to save more time in the answer than the
        reading takes. sequences: how many will run; answer: its most tokens, where that is known;
        sampled: whether at a temperature above 0.
        """
        histories = [History(sampled) for _ in self.names]
        rows = [Row(self._most, histories) for _ in range(sequences)]
        best = self._best(rows, [_NO_GAIN] * sequences, [part])
        plain = self.costs.passes(sequences, self._most)[0]
        saved = plain / sequences - best.ms / best.tokens  # of each token
        return saved * (answer or _ANSWER) > self._read_ms(part, 1, prompt)

    def _missed(self, part: int, rows: Seq[Row]) -> float:
        """Milliseconds in which a part reads what it missed, beyond a draft's usual ones."""
        unread = max(row.unread.get(part, 1) for row in rows)
        return self._read_ms(part, len(rows), unread) if unread > 1 else 0.0

    def _read_ms(self, part: int, sequences: int, tokens: int) -> float:
        """A small model's passes are taken to grow with their tokens as the target's do."""
        curve = self.costs.curve
        wider = curve(sequences * tokens) / curve(sequences) - 1
        return self.costs.drafts[self.names[part]].level * wider

    def charge(self, choice: Choice, ms: float) -> None:
        """Charge the time of a decision without a query: to the budget for trials, where one was
        considered. If nothing is drafted, plain steps follow until it is a small share of all
        time."""
        if choice.due:
            self._trial_budget -= ms
        if self._share and not any(choice.nodes):
            plain = self.costs.passes(len(choice.nodes), self._most)[0]
            self._idle = max(self._idle, min(_IDLE, int(ms / (self._share * plain))))

    def _expected(self, row: Row, part: int, shape: Shape, hope: float = 0.0) -> list[float]:
        copied = part not in self.computing
        tokens = expected(shape, self.rates[part], row.histories[part], hope, copied=copied)
        return tokens[: min(row.room, self._most) + 1]

    def _best(
        self, rows: Seq[Row], copied_gains: Seq[list[float]], computing: Seq[int], hope: float = 0.0
    ) -> Plan:
        """The best plan, in which at most one of these drafters computes; `hope` standard errors
        are added to its acceptance rates, and then its cost is the hoped one, too."""
        planner, reading = self._planner(len(rows)), self._reading(rows)
        copies = best = planner.copying(copied_gains, reading)
        for part in computing:
            own = [self._expected(row, part, self.shapes[part], hope) for row in rows]
            name, missed = self.names[part], self._missed(part, rows) / _USES
            cost = self.costs.hoped(name) if hope else self.costs.drafts[name]
            reach = self.shapes[part].reach
            levels = self._levels[part].expected(reach[-1])
            drafting = [
                cost.call * len(rows) + cost.level * levels[level] + missed * (level > 0)
                for level in reach
            ]
            plan = planner.computing(copied_gains, copies, own, drafting, reading)
            if any(plan.computes) and planner.better(plan, best):
                best = replace(plan, part=part)
        return best

    def _trial(self, rows: Seq[Row], copied_gains: Seq[list[float]], best: Plan) -> Choice | None:
        """A step that would be the best if drafters were better than their counts show, and no
        dearer than hoped, or None where there is none or the budget doesn't allow it.

        The counts of drafters that compute fade at each trial, and so does what was learned of
        their costs, so that all are tried again.
        """
        for part in self.computing:
            self.rates[part].forget(self._pause // _TRIAL_PAUSE)
            self.costs.forget(self.names[part], self._pause // _TRIAL_PAUSE)
        self._since_trial, self._saved_up = 0, 0.0
        for most in (self._most, 1):  # a single node shows what drafts cost, too
            cut = [replace(row, room=min(row.room, most)) for row in rows]
            hoped = self._best(cut, copied_gains, self.computing, _OPTIMISM)
            if hoped.part is None or not self._planner(len(rows)).better(hoped, best):
                return None
            missed = self._missed(hoped.part, rows) * (1 - 1 / _USES)
            dearer = self._dearer(hoped.part, hoped, len(rows))
            hoped.ms += dearer  # a trial pays for what its draft is expected to take
            tokens = self._tokens(hoped.part, hoped, rows, copied_gains)
            loss = hoped.ms + missed - tokens / best.speed
            if loss <= self._trial_budget:
                choice = self._assigned(rows, copied_gains, hoped)
                choice.trial = best.speed
                return choice
            self._saved_up = missed + dearer
            if loss - dearer > self._trial_budget:
                break
        return None

    def _tokens(self, part: int, plan: Plan, rows: Seq[Row], gains: Seq[list[float]]) -> float:
        """What a plan is expected to yield without optimism. gains: of the copies."""
        drafts = [
            self._expected(row, part, self.shapes[part]) if computes else copied
            for row, copied, computes in zip(rows, gains, plan.computes, strict=True)
        ]
        return len(rows) + sum(map(tokens_at, drafts, plan.nodes))

    def _dearer(self, part: int, plan: Plan, sequences: int) -> float:
        """By how many milliseconds a plan's draft is expected to take longer than was hoped."""
        taken = zip(plan.nodes, plan.computes, strict=True)
        level = self.shapes[part].reach[max(nodes for nodes, computes in taken if computes)]
        levels, name = self._levels[part].expected(level)[level], self.names[part]
        expected, hoped = self.costs.drafts[name], self.costs.hoped(name)
        return expected(sequences, levels) - hoped(sequences, levels)

    def _assigned(self, rows: Seq[Row], copied_gains: Seq[list[float]], plan: Plan) -> Choice:
        """The plan's draft for each sequence."""
        choice = Choice([], [], plan.ms)
        for place, row in enumerate(rows):
            taker, nodes = None, plan.nodes[place]
            if plan.computes[place]:
                nodes = min(nodes, row.room)
                taker = plan.part if nodes else None
            elif tokens_at(copied_gains[place], nodes) > 0:
                taker, nodes = self._best_copier(row, nodes)
            else:
                nodes = 0
            choice.takers.append(taker)
            choice.nodes.append(nodes)
        choice.saved = self._saved(rows, choice, plan)
        return choice

    def _best_copier(self, row: Row, most: int) -> tuple[int, int]:
        """The copier whose first `most` nodes yield most tokens, and how many of them to use."""
        part = max(row.gains, key=lambda part: tokens_at(row.gains[part], most))
        return part, min(most, len(row.gains[part]) - 1)

    def _saved(self, rows: Seq[Row], choice: Choice, plan: Plan) -> dict[int, float]:
        """Milliseconds that each copier's draft saves: those that its tokens take where nothing is
        copied, less those of their places in the pass. Tokens that several copiers draft count for
        the one from which more has been expected so far."""
        added = {part: 0.0 for row in rows for part in row.gains}
        if not any(plan.nodes) or not added:
            return added
        credited = [0.0] * len(rows)  # tokens of each row that an earlier copier also gives
        for part in sorted(added, key=lambda part: -self._promised[part]):
            promised = 0.0
            for place, row in enumerate(rows):
                tokens = tokens_at(row.gains.get(part, _NO_GAIN), plan.nodes[place])
                promised += tokens
                if tokens > credited[place] and choice.takers[place] not in (None, plan.part):
                    added[part] += tokens - credited[place]
                    credited[place] = tokens
            self._promised[part] += _SAVING_RATE * (promised / len(rows) - self._promised[part])
        copied = sum(added.values())
        alone = (self.costs.passes(len(rows), self._most)[0] + self._reading(rows)) / self._uncopied
        worth = alone / len(rows) - plan.copying_ms / copied if copied else 0.0  # of a token
        return {part: tokens * worth for part, tokens in added.items()}

    def record_step(
        self,
        choice: Choice,
        queried: Iterable[int],
        accepted: Seq[int],
        extra_ms: float = 0.0,
        drafted: Seq[int] = (),
    ) -> None:
        """Learn how the step went.

        accepted: tokens of each sequence. queried: copiers. extra_ms: by how many milliseconds
        drafting took longer than expected (a model that did not run for a while first reads what it
        missed), or less if negative. drafted: nodes of each sequence, where a draft may have ended
        early.
        """
        for part in {taker for taker in choice.takers if taker in self.computing and drafted}:
            rows = [row for row, taker in enumerate(choice.takers) if taker == part]
            asked, had = (max(nodes[row] for row in rows) for nodes in (choice.nodes, drafted))
            shape = self.shapes[part]
            self._levels[part].note(shape.levels(asked), shape.levels(had))
        self._earn(choice.ms, len(accepted))
        if choice.trial:
            self._trial_budget -= (
                choice.ms + extra_ms - (len(accepted) + sum(accepted)) / choice.trial
            )
        for part in queried:
            self._queries[part] += 1
            cost = self._query_ms(part, len(accepted))
            least = _SAVING_RATE if self._savings[part] >= _WORTHWHILE * cost else _RARE_RATE
            share = max(least, 1 / self._queries[part])
            self._savings[part] += share * (choice.saved.get(part, 0.0) - self._savings[part])

    def _earn(self, ms: float, sequences: int) -> None:
        """Add a step's share of time to the budgets for queries and for trials; what a trial takes
        for reading and for a draft that is dearer than hoped is saved up in addition, however long
        it takes."""
        most = _BUDGET_PASSES * self.costs.passes(sequences, self._most)[0]
        earned = self._share / 2 * ms
        self._query_budget = min(most, self._query_budget + earned)
        self._trial_budget = min(most + self._saved_up, self._trial_budget + earned)
