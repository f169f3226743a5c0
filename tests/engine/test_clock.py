"""The clock: passes count as verification, drafts and observations as drafting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.engine import clock
from foretoken.engine.clock import Clock, TimedDrafter, TimedTarget
from foretoken.tree import DraftTree, empty


class Working:
    """A target and a drafter; each call takes the seconds that it is told."""

    device = torch.device("cpu")
    vocab_size = 1
    nodes = 0

    def __init__(self, now: list[float]) -> None:
        self.now = now

    def score(self, sequences: Any, trees: Any) -> str:
        self.now[0] += 4
        return "pass"

    def commit(self, sequences: Any, paths: Any) -> None:
        self.now[0] += 100

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        self.now[0] += 2
        return empty(len(sequences), self.device)

    def observe(self, sequences: Any, steps: Any) -> None:
        self.now[0] += 1


def test_where_time_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass, a draft and an observation, each in its part; the rest is the loop's."""
    now = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    counted, working = Clock(total=20.0, prefill=3.0), Working(now)
    target: Any = TimedTarget(working, counted)  # type: ignore[arg-type]
    drafter: Any = TimedDrafter(working, counted)  # type: ignore[arg-type]
    assert target.score([], None) == "pass" and drafter.draft([None], [], None).nodes == 0
    drafter.observe([], [])
    target.commit([], [])
    assert (counted.verify, counted.draft) == (4, 3)
    assert counted.other == 20 - 3 - 4 - 3


def test_queued_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was queued before a draft isn't its own, and what it queues is."""
    now = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    counted, queued = Clock(), [8.0]

    def wait() -> None:
        now[0] += queued.pop() if queued else 0.0

    class Queueing(Working):
        def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
            queued.append(2.0)
            return empty(len(sequences), self.device)

    drafter: Any = TimedDrafter(Queueing(now), counted, wait)  # type: ignore[arg-type]
    drafter.draft([None], [], None)
    assert (counted.draft, now[0]) == (2, 10)
