"""Spends the time: a few prompts for all methods, then the rest for the best, in turn.

Screening is successive halving (Jamieson and Talwalkar 2016): after each round, of twice as many
prompts as the last one, the better half stays. Then the cell that has had least time is always
served next, by every method that is left, until no further unit would end in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

from foretoken.bench.measure.costs import Costs, pass_cost
from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer
from foretoken.bench.suites.suite import Prompt
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.prediction import Prediction, most_promising, predict
from foretoken.recommender.served import Cell, Served
from foretoken.recommender.servings import Servings

SCREENING = 0.4
"""The share of the time after which screening ends."""

Serve = Callable[[Unit], Seq[Answer]]
"""Answers of plain decoding and of all methods that are left."""

_GROUPS = 10  # of prompts that are wanted in each cell
_FEWEST, _MOST = 2, 4  # methods that are timed


def affordable(costs: Costs, cells: Seq[Cell], max_tokens: int, seconds: float) -> int:
    """How many methods, beside plain decoding and `auto`, can be timed on enough prompts."""
    cost = pass_cost(costs["target"])
    answers = (max_tokens * cost(cell.batch_size, cell.batch_size) / 1000 for cell in cells)
    rows = (1 - SCREENING) * seconds / (_GROUPS * sum(answers))
    return max(_FEWEST, min(_MOST, int(rows) - 2))


@dataclass(frozen=True)
class Allowance:
    """seconds: from `began` on, by the clock `now`."""

    seconds: float
    now: Callable[[], float] = perf_counter
    began: float = 0.0

    @classmethod
    def starting(cls, seconds: float, now: Callable[[], float] = perf_counter) -> Allowance:
        return cls(seconds, now, now())

    @property
    def spent(self) -> float:
        return self.now() - self.began

    @property
    def left(self) -> float:
        return self.seconds - self.spent


class Screening:
    """All candidates on a few short answers, one sequence at a time; what is known stays here when
    it is interrupted.

    left: the candidates that are still in it. used: how many prompts were served.
    """

    def __init__(
        self, candidates: Seq[Candidate], prompts: Seq[Prompt], cells: Seq[Cell], costs: Costs
    ) -> None:
        self._candidates, self._prompts, self._costs = candidates, prompts, costs
        self._sizes = sorted({cell.batch_size for cell in cells})
        self._temperatures = list(dict.fromkeys(cell.temperature for cell in cells))
        self.served = Served()
        self.left, self.used = list(candidates), 0

    def run(
        self,
        serve: Serve,
        keep: Callable[[Collection[str]], None],
        allowance: Allowance,
        least: int,
        advance: Callable[[], None],
    ) -> None:
        """Halve the candidates until `least` are left, the prompts are used up, or the time is.

        serve: a unit, by plain decoding and the candidates that are left; keep: these alone.
        """
        many, begun = 1, False
        while prompts := self._prompts[self.used : self.used + many]:
            for unit in self._units(prompts):
                if begun and allowance.spent > SCREENING * allowance.seconds:
                    return
                self.served.add(Cell(1, unit.temperature), serve(unit))
                begun = True
                advance()
            self.used, many = self.used + len(prompts), 2 * many
            half = max(least, math.ceil(len(self.left) / 2))
            better = {one.label for one in most_promising(self.predictions(), half)}
            self.left = [candidate for candidate in self.left if candidate.label in better]
            keep(better)
            if len(self.left) <= least:
                return

    def _units(self, prompts: Seq[Prompt]) -> Iterator[Unit]:
        return (Unit((p,), 1, t) for p in prompts for t in self._temperatures)

    def predictions(self) -> list[Prediction]:
        """Of the candidates that are left and have answered something, the best first."""
        return self._predicted(self.left)

    def dropped(self) -> list[Prediction]:
        """Of those that are not left, in the same order."""
        return self._predicted([one for one in self._candidates if one not in self.left])

    def _predicted(self, candidates: Seq[Candidate]) -> list[Prediction]:
        found: list[Prediction] = []
        for candidate in candidates:
            compared = {
                t: self.served.compared(candidate.label, Cell(1, t)) for t in self._temperatures
            }
            screened = {t: one.numbers() for t, one in compared.items() if one is not None}
            if screened:
                found.append(predict(candidate, screened, self._costs, self._sizes))
        return sorted(found, key=lambda one: -one.mean)

    def failures(self) -> dict[str, str]:
        """Why the candidates failed that answered nothing."""
        answered = {one.label for one in self._predicted(self._candidates)}
        errors = {c.label: self.served.errors(c.label) for c in self._candidates}
        return {label: said[0] for label, said in errors.items() if said and label not in answered}


class Timing:
    """The methods that are left, by the clock, in every cell; what is known stays here when it is
    interrupted."""

    def __init__(self, prompts: Seq[Prompt], cells: Seq[Cell]) -> None:
        self._servings = {cell: Servings(_units(prompts, cell)) for cell in cells}
        self._spent = dict.fromkeys(cells, 0.0)
        self._longest = dict.fromkeys(cells, 0.0)

    @property
    def served(self) -> Served:
        """What counts of it."""
        served = Served()
        for cell, servings in self._servings.items():
            for answers in servings.counting():
                served.add(cell, answers)
        return served

    @property
    def disturbed(self) -> int:
        """How many units were left out: see `Servings`."""
        return sum(servings.left_out for servings in self._servings.values())

    def run(self, serve: Serve, allowance: Allowance, advance: Callable[[], None]) -> None:
        """Serve until the longest unit so far of each cell wouldn't end in time."""
        while (cell := self._next(allowance)) is not None:
            began, servings = allowance.now(), self._servings[cell]
            unit = servings.next()
            servings.add(unit, serve(unit))
            took = allowance.now() - began
            self._spent[cell] += took
            self._longest[cell] = max(took, self._longest[cell])
            advance()

    def _next(self, allowance: Allowance) -> Cell | None:
        """The cell that has had least time, of those that have enough left."""
        left = allowance.left
        fitting = [c for c, longest in self._longest.items() if left > 0 and longest <= left]
        return min(fitting, key=self._spent.__getitem__, default=None)


def _units(prompts: Seq[Prompt], cell: Cell) -> Iterator[Unit]:
    """Groups of different prompts, from the first again after the last."""
    size = cell.batch_size
    starts = range(0, len(prompts) - size + 1, size)
    groups = [Unit(tuple(prompts[i : i + size]), size, cell.temperature) for i in starts]
    return cycle(groups)
