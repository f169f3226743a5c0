"""Answers by the units that they were served in.

A method is compared with plain decoding over the units that both answered, one right after the
other: the same prompts, in the same minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from foretoken.bench.measure.metrics import looping, measure, without_failures
from foretoken.bench.record import BASELINE, Answer, Measured


@dataclass(frozen=True, order=True)
class Cell:
    """A batch size and a temperature: where a method may pay and elsewhere not."""

    batch_size: int
    temperature: float

    def __str__(self) -> str:
        how = "greedy" if self.temperature == 0 else f"at temperature {self.temperature:g}"
        return how if self.batch_size == 1 else f"{how} at batch {self.batch_size}"


@dataclass(frozen=True)
class Comparison:
    """A method's answers and plain decoding's of the same units. groups: how many groups of
    prompts that were served together these are: the unit of the statistics."""

    answers: Seq[Answer]
    plain: Seq[Answer]

    @property
    def groups(self) -> int:
        return len({answer.group for answer in self.answers})

    def numbers(self) -> tuple[Measured, Measured]:
        """What the benchmark would report of the method, and of plain decoding."""
        return measure(self.answers, self.plain), measure(self.plain, self.plain)

    def without_loops(self) -> Comparison:
        """Without the prompts that plain decoding answers with a loop, as it is easily copied."""
        loops = set(looping(self.plain))
        return Comparison(_others(self.answers, loops), _others(self.plain, loops))


class Served:
    """Units in the order in which they were served."""

    def __init__(self) -> None:
        self._units: list[tuple[Cell, Seq[Answer]]] = []

    def add(self, cell: Cell, answers: Seq[Answer]) -> None:
        self._units.append((cell, answers))

    def compared(self, method: str, cell: Cell) -> Comparison | None:
        """None where the method has no answer that didn't fail."""
        own: list[Answer] = []
        plain: list[Answer] = []
        for where, answers in self._units:
            answered = without_failures(a for a in answers if a.method == method)
            if where == cell:
                ids = {answer.id for answer in answered}
                own += answered
                plain += [a for a in answers if a.method == BASELINE and a.id in ids]
        return Comparison(own, plain) if own else None

    @property
    def loops(self) -> int:
        """How many prompts plain decoding answered with a loop in some cell."""
        cells = dict.fromkeys(cell for cell, _ in self._units)
        plain = [self.compared(BASELINE, cell) for cell in cells]
        return len({name for one in plain if one is not None for name in looping(one.plain)})

    def errors(self, method: str) -> list[str]:
        """Why answers of the method failed."""
        return [a.error for _, unit in self._units for a in unit if a.method == method and a.error]


def _others(answers: Iterable[Answer], ids: set[str]) -> list[Answer]:
    return [answer for answer in answers if answer.id not in ids]
