"""A server without a model: answers that take known times, by a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from foretoken.bench.plan import Unit
from foretoken.bench.record import BASELINE, Answer
from foretoken.bench.suites.suite import Prompt
from measured_answers import answer

PLAIN_MS = 10.0
"""What a step of plain decoding takes."""

Pace = Callable[[Unit], float]
"""Speedup of a method over plain decoding for a unit."""


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{number}", "yours", (f"Text {number}",)) for number in range(count)]


def given(unit: Unit, method: str, ms: float, **more: Any) -> list[Answer]:
    """Answers of eight tokens in `ms` together: plain decoding in eight steps, others in four."""
    share = ms / 1000 / len(unit.prompts)
    seconds = {"prefill": 0.0, "draft": 0.0, "verify": share, "other": 0.0, "ttft": 0.0}
    counts: dict[str, Any] = {"passes": 8, "drafted": 0, "drafted_at": [], "accepted_at": []}
    if method != BASELINE:
        counts = {"passes": 4, "drafted": 4, "drafted_at": [4], "accepted_at": [4]}
    common: dict[str, Any] = {
        "method": method,
        "group": unit.group,
        "temperature": unit.temperature,
        "batch_size": unit.batch_size,
        "token_ids": list(range(8)),
        "seconds": {**seconds, "total": share},
        "engine_steps": counts["passes"] / len(unit.prompts),
    }
    return [answer(id=prompt.id, **{**common, **counts, **more}) for prompt in unit.prompts]


class Table:
    """Serves by a table: method -> its speedup. now: seconds that it has taken by now."""

    def __init__(self, paces: Mapping[str, Pace | float]) -> None:
        self.paces, self.now, self.units = dict(paces), 0.0, list[Unit]()

    def clock(self) -> float:
        return self.now

    def keep(self, labels: Collection[str]) -> None:
        self.paces = {name: pace for name, pace in self.paces.items() if name in labels}

    def serve(self, unit: Unit) -> list[Answer]:
        self.units.append(unit)
        found = given(unit, BASELINE, 8 * PLAIN_MS)
        for name, pace in self.paces.items():
            speedup = pace if isinstance(pace, float) else pace(unit)
            found += given(unit, name, 8 * PLAIN_MS / speedup)
        self.now += sum(a.decoding for a in found)
        return found
