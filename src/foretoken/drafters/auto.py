"""`auto`: at every step each sequence takes the draft that pays most, or none.

`foretoken.control` chooses by measured costs and by how earlier drafts were accepted. Choosing a
drafter while decoding is a bandit problem (Hou et al. 2025, BanditSpec); choosing a draft's length
for a measured cost goes back to Leviathan et al. 2023, theorem 3.8, and choosing it for a whole
batch by the value of the next token to Liu et al. 2024 (SmartSpec). Departure: a copying drafter is
judged by every draft that it offers, used or not, so learning its acceptance rate costs nothing.

Where a part draws its tokens, the text sampled at a seed depends on the machine's speed and on the
other requests, though its distribution doesn't. With the rule "gumbel" the text doesn't either.

Legend: B sequences, P parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from time import perf_counter
from typing import ClassVar

from foretoken.access import Access, Wants
from foretoken.control.choice import Choice, Row
from foretoken.control.controller import Controller
from foretoken.control.cost_model import CostModel, assumed
from foretoken.control.knowledge import Knowledge
from foretoken.control.rates import History, shapes_of
from foretoken.drafters.shared.forgetting import Forgetting
from foretoken.drafters.shared.wrapper import Wrapper
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.protocols import Drafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, Kind, empty
from foretoken.trees.join import assemble

NONE = "autoregressive"
_CHOSEN = frozenset({Kind.CHOSEN, Kind.AUXILIARY})
_CHEAP = 0.25  # of a plain pass: a drafter of chosen tokens that costs no more is a copier
_CHEAP_LEVELS = 4  # levels of the draft whose cost is compared with that
_TIMED_EVERY, _LATER, _OFTEN = 2, 8, 64  # steps; the second once so many as the third were timed
_TIMED_PLAIN = 2  # which one of a run of plain steps is timed
_COVERED = {"suffix": "pld"}
"""What `pld` copies, `suffix` copies too, and the size of its copy says how sure it is."""


@dataclass(slots=True)
class _Drafted:
    """What `observe` must know of the step's draft. queried: copier -> seconds of its query. began,
    decided, drafted: points in time, in seconds. unread: tokens that a part had yet to read."""

    choice: Choice
    queried: dict[int, float]
    began: float
    decided: float
    drafted: float
    unread: int = 1


@dataclass(eq=False)
class Auto(Wrapper):
    """drafters: the parts; names: of the parts. num_speculative_tokens: most nodes of a sequence's
    draft; exploration: the share of all time that may be lost by trying what seems not to pay.
    costs: by default the engine measures them. lenient: whether a part that the target can't serve
    is left out without an error. remember: whether acceptance rates are kept in the cache folder
    and believed, as a few nodes, at the next start.
    """

    names: Seq[str] = ()
    num_speculative_tokens: int = 16
    exploration: float = 0.01
    costs: CostModel | None = None
    lenient: bool = False
    remember: bool = True

    least: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_speculative_tokens < 1 or not 0 <= self.exploration < 1:
            raise ForetokenError(
                f"num_speculative_tokens is {self.num_speculative_tokens} and exploration "
                f"{self.exploration}; they must be at least 1, and from 0 to below 1."
            )
        self.names = list(self.names or (type(part).__name__ for part in self.drafters))
        if len({*self.names}) < len(self.drafters):
            raise ForetokenError(f"The parts are called {self.names}; give them different names.")
        self.chose: Seq[str] = ()
        self._control: Controller | None = None
        self._knowledge: Knowledge | None = None
        self._drafted: _Drafted | None = None
        self._comparing = False  # whether a copier's draft is still compared with the text
        self._untimed = self._timed = 0  # steps since one was timed, and how many were
        self._idle_steps = self._idled = self._idle_rows = 0  # plain: granted, made, of so many
        self._plain_from = 0.0  # when the last one of these began
        self._running = 1  # sequences of the last step
        if self.lenient:
            self.wants = Wants("a", self.wants.hidden)
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        if self.lenient:
            served = {
                name: part
                for name, part in zip(self.names, self.drafters, strict=True)
                if set(part.wants.levels) <= access.levels
            }
            covered = {_COVERED.get(name) for name in served}
            self.names = [name for name in served if name not in covered]
            self.drafters = [served[name] for name in self.names]
        super().bind(access)
        self.shared = Forgetting(self.shared, self.forget)
        self._not_following = [part for part in self.drafters if not part.follows]

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        if self.costs is None:
            costs = measure(dict(zip(self.names, self.drafters, strict=True)))
            if self.shared is not None:
                self.shared.reset()  # measuring drafted for a synthetic text
            self.costs = costs
            if self.remember and costs.of:
                self._knowledge = Knowledge(self, costs.of)

    @property
    def control(self) -> Controller:
        """Made at the first step, when the costs are known."""
        if self._control is None:
            parts = dict(zip(self.names, self.drafters, strict=True))
            draws = {name: not part.kinds <= _CHOSEN for name, part in parts.items()}
            costs = self.costs or assumed(draws)
            plain = costs.passes(1, 0)[0]
            computing = [
                number
                for number, (name, part) in enumerate(parts.items())
                if not (part.follows and part.kinds == {Kind.CHOSEN})
                or costs.drafts[name](1, _CHEAP_LEVELS) > _CHEAP * plain
            ]
            self._control = Controller(
                self.names,
                computing,
                costs,
                most=self.num_speculative_tokens,
                share=self.exploration,
            )
            if self._knowledge is not None:
                self._knowledge.read(self._control.rates)
        return self._control

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        count = self._running = len(sequences)
        self._drafted = None  # a step that failed may have left its own
        if self._idled < self._idle_steps and count == self._idle_rows:
            self._idled, self._plain_from = self._idled + 1, perf_counter()
            return empty(count, self._device)
        began, control = perf_counter(), self.control
        if self._report_idle_steps() and self._comparing:
            self._follow(sequences)
        copiers = control.copiers_to_query(count)
        if not copiers and (steps := control.idle_steps(count)):
            self._idle_steps, self._idled, self._idle_rows = steps, 1, count
            self.chose = [NONE] * count
            return empty(count, self._device)
        rooms, copies, queried = [min(x, self.num_speculative_tokens) for x in budgets], {}, {}
        for number in copiers:
            start = perf_counter()
            copies[number] = self.drafters[number].draft(sequences, rooms, draws).trim(rooms)
            queried[number] = perf_counter() - start
        choice = self._choose(sequences, rooms, copies)
        decided = perf_counter()
        if len(taken := choice.rows()) == 1 and taken.keys() <= copies.keys():
            tree = copies[next(iter(taken))].trim(choice.nodes)  # its rows are in their places
        else:
            pieces = []
            for number, rows in taken.items():
                copy = copies[number].take(rows) if number in copies else None
                tree = copy or self._computed(number, rows, choice, sequences, rooms, draws)
                pieces.append((rows, tree.trim([choice.nodes[row] for row in rows])))
            tree = assemble(pieces, count, self._device)
        decision = decided - began - sum(queried.values())
        queried = {n: seconds + decision / len(queried) for n, seconds in queried.items()}
        self._drafted = _Drafted(choice, queried, began, decided, perf_counter())
        return tree

    def _report_idle_steps(self) -> bool:
        """Whether there were any: no draft was compared with their text yet."""
        if idled := self._idled:
            self.control.idled(self._idle_rows, idled)
        self._idle_steps = self._idled = 0
        return idled > 0

    def _computed(
        self,
        number: int,
        rows: Seq[int],
        choice: Choice,
        sequences: Seq[Sequence],
        rooms: Seq[int],
        draws: Draws,
    ) -> DraftTree:
        """The draft of a part that was chosen; its first trees that have room are made whole, to
        learn its shape, but for auxiliary nodes, which say nothing once they are cut."""
        part, takers = self.drafters[number], [sequences[row] for row in rows]
        most = min(part.nodes, self.num_speculative_tokens)
        roomy = max(rooms[row] for row in rows) >= most
        new = part.trees and roomy and self.control.unshaped(number)
        larger = new and Kind.AUXILIARY not in part.kinds
        counts = [(rooms if larger else choice.nodes)[row] for row in rows]
        tree = part.draft(takers, counts, draws.take(rows)).trim(counts)
        if new and max(counts) >= most:
            self.control.learn_shape(number, max(shapes_of(tree), key=len), most)
        return tree

    def _choose(
        self, sequences: Seq[Sequence], rooms: Seq[int], copies: Mapping[int, DraftTree]
    ) -> Choice:
        """The controller's choice; the copiers' drafts are kept to be compared with the text."""
        histories = [self._histories(sequence) for sequence in sequences]
        shapes = {number: shapes_of(tree) for number, tree in copies.items()}
        choice = self.control.choose(
            [
                Row(
                    room,
                    history,
                    {part: rows[row] for part, rows in shapes.items() if rows[row]},
                    self._unread(sequences[row], history),
                    len(sequences[row].tokens),
                )
                for row, (room, history) in enumerate(zip(rooms, histories, strict=True))
            ]
        )
        for number, tree in copies.items():
            for row, tokens in enumerate(tree.tokens.tolist()):
                shape, used = shapes[number][row], choice.takers[row] == number
                histories[row][number].remember(tokens, shape, len(sequences[row].tokens), used)
        self._comparing = self._comparing or any(any(tree.counts) for tree in copies.values())
        return choice

    def _unread(self, sequence: Sequence, histories: Seq[History]) -> dict[int, int]:
        """How many tokens each part that computes has yet to read, where it reads late."""
        length = len(sequence.tokens)
        return {
            number: length - histories[number].read
            for number in self.control.computing
            if self.drafters[number].follows
        }

    def _histories(self, sequence: Sequence) -> list[History]:
        histories: list[History] | None = sequence.state.get(self)
        if histories is None:
            sampled = sequence.params.temperature > 0
            histories = sequence.state[self] = [History(sampled) for _ in self.drafters]
        return histories

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        if self._idled and steps[0].tokens:
            if self._idled == _TIMED_PLAIN:  # else only drafts would tell how fast the machine is
                self._time_pass(perf_counter() - self._plain_from, sequences, steps)
            for part in self._not_following:
                part.observe(sequences, steps)
            return
        scored = perf_counter()
        prefill = not steps[0].tokens
        now, self._drafted = None if prefill else self._drafted, None
        takers = now.choice.takers if now is not None else [None] * len(steps)
        if prefill and self.costs is not None:
            self._read(sequences, steps)
            return
        for number, part in enumerate(self.drafters):
            drafted = now is not None and (number in now.queried or number in takers)
            if part.follows and not drafted and not prefill:
                continue
            # Hide other parts' drafts, which a part would take for its own.
            visible = [
                step if taker in (None, number) else replace(step, drafted=0)
                for taker, step in zip(takers, steps, strict=True)
            ]
            part.observe(sequences, visible)
        if now is None:
            return
        self.chose = [NONE if taker is None else self.names[taker] for taker in takers]
        if self._comparing:
            self._follow(sequences)
        self._learn(now, sequences, steps)
        self._time(now, scored, sequences, steps)
        if not now.queried:
            spent = now.decided - now.began + perf_counter() - scored
            self.control.charge(now.choice, 1000 * spent)

    def _read(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Prompts are read; parts that compute read those with which it is expected to pay, and
        others only once they are chosen."""
        for number, part in enumerate(self.drafters):
            rows = [
                row
                for row, sequence in enumerate(sequences)
                if not part.follows or self._reads(number, sequence, len(sequences))
            ]
            if rows:
                part.observe([sequences[row] for row in rows], [steps[row] for row in rows])

    def _reads(self, number: int, sequence: Sequence, together: int) -> bool:
        """Decided at the prompt's first tokens."""
        control, history = self.control, self._histories(sequence)[number]
        if number not in control.computing:
            return True
        if history.reads is None:
            running = max(together, self._running)
            prompt, answer = sequence.prompt_length, sequence.params.max_tokens
            history.reads = control.reads(number, running, prompt, answer, history.sampled)
            history.read = len(sequence.tokens) - 1 if history.reads else 0
        return history.reads

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        super().fork(sequence, copy)
        histories = self._histories(sequence), self._histories(copy)
        for mine, theirs in zip(*histories, strict=True):
            theirs.reads, theirs.read = mine.reads, min(mine.read, copy.prompt_length - 1)

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        if self._knowledge is not None:
            self._knowledge.keep()

    def forget(self) -> None:
        """Forget acceptance rates, also those of earlier processes, and keep none from now on."""
        if self._knowledge is not None:
            self._knowledge.drop()
        if self.costs is not None:
            self._report_idle_steps()
            self.control.reset()

    def _follow(self, sequences: Seq[Sequence]) -> None:
        """Compare the copiers' pending drafts with the text."""
        rates, copiers, self._comparing = self.control.rates, self.control.copiers, False
        for sequence in sequences:
            histories = self._histories(sequence)
            for number in copiers:
                pending = histories[number].pending
                if pending is not None and pending.open:
                    histories[number].compare(rates[number], sequence.tokens)
                    self._comparing = self._comparing or pending.open

    def _learn(self, now: _Drafted, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """Count what was accepted of the parts that compute."""
        control, choice = self.control, now.choice
        computed = any(taker in control.computing for taker in choice.takers)
        shapes = shapes_of(steps[0].tree) if computed else []
        for row, (sequence, step) in enumerate(zip(sequences, steps, strict=True)):
            histories = self._histories(sequence)
            for number in control.computing:
                if number == choice.takers[row]:
                    history, nodes = histories[number], choice.nodes[row]
                    unread = len(sequence.tokens) - len(step.tokens) - history.read
                    now.unread = max(now.unread, unread)
                    history.record_pass(control.rates[number], shapes[row], nodes, step.path)
                    history.read = len(sequence.tokens) - 1
                else:
                    histories[number].skip_pass()
        drafted = [step.drafted for step in steps]
        accepted = [len(step.path) if step.drafted else 0 for step in steps]  # of its own drafts
        extra_ms = sum(control.costs.extra_ms(*draft) for draft in self._drafts(now, steps))
        control.record_step(choice, now.queried, accepted, extra_ms, drafted)

    def _drafts(self, now: _Drafted, steps: Seq[Step]) -> Iterator[tuple[str, int, int, float]]:
        """The draft of the part that computed, if one did: (name, sequences, levels, ms)."""
        control, takers = self.control, now.choice.takers
        for number in {taker for taker in takers if taker in control.computing}:
            assert number is not None
            rows = [row for row, taker in enumerate(takers) if taker == number]
            levels = control.shapes[number].levels(max(steps[row].drafted for row in rows))
            yield self.names[number], len(rows), levels, 1000 * (now.drafted - now.decided)

    def _time_pass(self, seconds: float, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        costs, cells = self.control.costs, sum(len(sequence.tokens) for sequence in sequences)
        scored = [step.tree.counts[step.row] for step in steps]  # also those of predictions
        costs.record_pass_time(costs.size(scored), 1000 * seconds, cells)

    def _time(
        self, now: _Drafted, scored: float, sequences: Seq[Sequence], steps: Seq[Step]
    ) -> None:
        """Learn costs, in trials and every few steps. The pass lasts from the draft to `scored`."""
        self._untimed += 1
        every = _TIMED_EVERY if self._timed < _OFTEN else _LATER
        if self._untimed < every and not now.choice.trial:
            return
        self._untimed, self._timed, costs = 0, self._timed + 1, self.control.costs
        self._time_pass(scored - now.drafted, sequences, steps)
        after = perf_counter() - scored
        for number, seconds in now.queried.items():
            whole = 1000 * (seconds + after / len(now.queried))  # deciding is part of the query
            costs.record_draft_time(self.names[number], len(steps), self.nodes, whole)
        for draft in self._drafts(now, steps):
            costs.record_computed(*draft, now.unread)
