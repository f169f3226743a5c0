"""Measures where an engine's time goes: wrappers that time a target and a drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from foretoken.access import Pass
from foretoken.draws import Draws
from foretoken.errors import caught, described
from foretoken.protocols import BaseDrafter, Drafter, Scorer, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree


@dataclass(slots=True)
class Clock:
    """Seconds spent in each part; the rest of `total` is the loop's own work."""

    draft: float = 0.0
    verify: float = 0.0
    prefill: float = 0.0
    total: float = 0.0

    @property
    def other(self) -> float:
        return self.total - self.draft - self.verify - self.prefill


class TimedTarget:
    """The part of a target that a step needs; the time of its passes counts as `verify`. Errors
    name the model's part in them."""

    def __init__(self, target: Scorer, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self.device, self.commit = target.device, target.commit

    def score(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        began = perf_counter()
        try:
            return self._target.score(sequences, trees)
        except caught() as error:
            raise described("The target's pass", error) from error
        finally:
            self._clock.verify += perf_counter() - began


class TimedDrafter(BaseDrafter):
    """A drafter whose drafts and observations count as `draft`.

    wait: until what is queued on a device is done; without it that counts where it is waited for.
    """

    def __init__(
        self, drafter: Drafter, clock: Clock, wait: Callable[[], None] = lambda: None
    ) -> None:
        self._drafter, self._clock, self._wait = drafter, clock, wait

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        with self._timed():
            return self._drafter.draft(sequences, budgets, draws)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        with self._timed():
            self._drafter.observe(sequences, steps)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._wait()
        began = perf_counter()
        try:
            yield
            self._wait()
        finally:
            self._clock.draft += perf_counter() - began
