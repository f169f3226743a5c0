"""Pairs two measurements by prompt: ratios between them, with intervals.

The unit is what was served together, drawn with its measurements of both methods in both runs, so
that how easy a prompt is cancels out of the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretoken.bench.measure.bootstrap import interval
from foretoken.bench.record import Answer

RESAMPLES = 10_000

Key = tuple[str, str, str, float, int]
"""target, dtype, method, temperature, batch size"""

Sums = NDArray[np.float64]
"""[..., 5] tokens, seconds and passes of a method, tokens and seconds of plain decoding"""

QUANTITIES: dict[str, Callable[[Sums], Sums]] = {
    "speedup": lambda s: (s[..., 0] / s[..., 1]) / (s[..., 3] / s[..., 4]),
    "mean acceptance length": lambda s: s[..., 0] / s[..., 2],
    "tokens/s": lambda s: s[..., 0] / s[..., 1],
}


@dataclass
class Prompt:
    """Sums over the turns of one prompt. passes: NaN where a server didn't count a turn's."""

    group: str
    tokens: int = 0
    seconds: float = 0.0
    passes: float = 0.0
    failed: bool = False

    def add(self, answer: Answer) -> None:
        self.tokens += answer.tokens
        self.seconds += answer.decoding
        self.passes += math.nan if answer.tokens and not answer.passes else answer.passes
        self.failed |= answer.error is not None


Prompts = Mapping[str, Prompt]
Both = tuple[Prompts, Prompts]
"""A method's prompts, and plain decoding's."""


def gather(answers: Iterable[Answer]) -> dict[Key, dict[str, Prompt]]:
    """The answers of each run by prompt, without their text."""
    by_run: dict[Key, dict[str, Prompt]] = {}
    for a in answers:
        key = (a.target, a.dtype, a.method, a.temperature, a.batch_size)
        by_run.setdefault(key, {}).setdefault(a.id, Prompt(a.group)).add(a)
    return by_run


def pair(before: Both, after: Both, left_out: Iterable[str] = ()) -> Sums | None:
    """[units, 2, 5] of the prompts that both methods answered in both runs.

    None where these are fewer than two units, or where they were not served in the same groups.
    """
    ids = [
        key
        for key in before[0]
        if key not in left_out
        and all(key in prompts and not prompts[key].failed for prompts in (*before, *after))
    ]
    units = _units(ids, before[0])
    if len(units) < 2 or units != _units(ids, after[0]):
        return None
    return np.array([[_sums(unit, both) for both in (before, after)] for unit in units], float)


def _units(ids: Seq[str], prompts: Prompts) -> list[tuple[str, ...]]:
    by_group: dict[str, list[str]] = {}
    for key in sorted(ids):
        by_group.setdefault(prompts[key].group, []).append(key)
    return sorted(tuple(members) for members in by_group.values())


def _sums(unit: Seq[str], both: Both) -> list[float]:
    of_method, plain = ([prompts[key] for key in unit] for prompts in both)
    return [
        sum(p.tokens for p in of_method),
        sum(p.seconds for p in of_method),
        sum(p.passes for p in of_method),
        sum(p.tokens for p in plain),
        sum(p.seconds for p in plain),
    ]


def values(units: Sums, what: str) -> tuple[float, float] | None:
    """A quantity before and after, over all units; None where one has no value."""
    with np.errstate(divide="ignore", invalid="ignore"):
        both = QUANTITIES[what](units.sum(0))
    return (float(both[0]), float(both[1])) if np.isfinite(both).all() else None


def ratio_interval(units: Sums, what: str, tail: float) -> tuple[float, float] | None:
    """The interval of after ÷ before with the share `tail` of the resamples beyond either end.

    None where there are fewer than two units, or where a resample has no ratio.
    """

    def ratios(totals: Sums) -> Sums:
        both = QUANTITIES[what](totals)
        return both[..., 1] / both[..., 0]

    return interval(units, ratios, tail=tail, resamples=RESAMPLES)
