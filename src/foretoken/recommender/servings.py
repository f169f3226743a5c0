"""A cell's units as they were timed, and those that the machine disturbed.

A unit in which some method, or plain decoding, took more than twice its usual time for a step is
served once more, and of both servings the faster counts, method by method: another program's moment
would otherwise make a winner, and a long text is slow both times. A disturbed unit for whose
second serving no time was left counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import median

from foretoken.bench.measure.metrics import group_by
from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer

DISTURBED = 2.0
"""Times the usual time of a step, from which on a unit is served again."""
_LEAST = 3  # servings from which on it is known what is usual


@dataclass(eq=False)
class _Serving:
    """pace: method -> seconds for a step. repeated: whether it was served twice."""

    unit: Unit
    answers: Seq[Answer]
    pace: Mapping[str, float]
    repeated: bool = False


class Servings:
    """units: in the order in which they are served; they never end."""

    def __init__(self, units: Iterator[Unit]) -> None:
        self._units = units
        self._served: list[_Serving] = []
        self._repeating: _Serving | None = None

    def next(self) -> Unit:
        """A disturbed unit once more, or the next one."""
        self._repeating = next(self._disturbed(), None)
        return next(self._units) if self._repeating is None else self._repeating.unit

    def add(self, unit: Unit, answers: Seq[Answer]) -> None:
        """The answers to the unit that `next` has given."""
        before = self._repeating
        if before is None:
            self._served.append(_Serving(unit, answers, _pace(answers)))
        else:
            before.answers = _faster(before.answers, answers)
            before.repeated = True

    def counting(self) -> list[Seq[Answer]]:
        """The answers of each unit that counts."""
        left_out = list(self._disturbed())
        return [one.answers for one in self._served if one not in left_out]

    @property
    def left_out(self) -> int:
        """How many units don't count."""
        return sum(1 for _ in self._disturbed())

    def _disturbed(self) -> Iterator[_Serving]:
        """Those that were served only once."""
        if len(self._served) < _LEAST:
            return
        names = dict.fromkeys(name for one in self._served for name in one.pace)
        usual = {n: median(one.pace[n] for one in self._served if n in one.pace) for n in names}
        for one in self._served:
            slow = any(pace > DISTURBED * usual[name] for name, pace in one.pace.items())
            if slow and not one.repeated:
                yield one


def _pace(answers: Iterable[Answer]) -> dict[str, float]:
    """Seconds for a step of each method that answered."""
    passes = {
        method: (sum(a.decoding for a in own), sum(a.passes for a in own))
        for method, own in group_by(lambda a: a.method, answers).items()
    }
    return {method: seconds / steps for method, (seconds, steps) in passes.items() if steps}


def _faster(first: Seq[Answer], second: Seq[Answer]) -> list[Answer]:
    """Of each method the serving that took less time; one that failed in either has failed."""
    chosen: list[Answer] = []
    again = group_by(lambda a: a.method, second)
    for method, own in group_by(lambda a: a.method, first).items():
        failed = [any(a.error for a in answers) for answers in (own, again[method])]
        seconds = [sum(a.decoding for a in answers) for answers in (own, again[method])]
        keep_first = failed[0] or (not failed[1] and seconds[0] <= seconds[1])
        chosen += own if keep_first else again[method]
    return chosen
