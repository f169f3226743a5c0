"""The speedup that a row's tokens a pass allow at the costs that its passes had."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foretoken.bench.measure.costs import Costs, pass_cost
from foretoken.bench.measure.ideal import ideal, machine
from foretoken.bench.measure.metrics import measure, without_failures
from foretoken.bench.measure.simulate import measured_drafting, step_ms
from foretoken.bench.record import BASELINE, Answer, Measured

_WIDER = ("lookahead",)
"""Methods whose passes score more than their drafts, which no record counts."""
OFF = 0.1
"""By how much a timed pass may differ from plain decoding's passes of the same round."""


def typical(lines: Sequence[Mapping[str, Any]]) -> Costs | None:
    """The pieces' costs as one: of each number the median, among pieces of the latest's context."""
    if not lines:
        return None
    alike = [line for line in lines if line["context"] == lines[-1]["context"]]
    kept: Any = _median([{k: v for k, v in line.items() if k != "piece"} for line in alike])
    return kept  # type: ignore[no-any-return]


def _median(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _median([v[key] for v in values if key in v]) for key in first}
    if isinstance(first, list):
        return [_median(list(items)) for items in zip(*values, strict=True)]
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    return type(first)(statistics.median(values))


def mistimed(costs: Costs | None, plain: Sequence[Answer]) -> dict[str, float] | None:
    """{"timed_ms", "plain_ms"} of a pass over one token of each sequence, as it was timed between
    the prompts of a round and as plain decoding had it there, where the two differ by more than
    `OFF`; an ideal that is made of such passes is another machine's than the speed."""
    if costs is None or not any(a.passes for a in plain):
        return None
    size, verify = plain[0].batch_size, measure(plain, plain)["ms_per_step"]["verify"]
    timed = pass_cost(costs["target"])(size, size)
    alike = verify > 0 and abs(timed / verify - 1) <= OFF
    return None if alike else {"timed_ms": timed, "plain_ms": verify}


def ideal_of_rounds(
    method: str,
    rounds: Iterable[tuple[Sequence[Answer], Sequence[Answer], Costs | None]],
    size: int,
) -> float | None:
    """The speedup over all rounds if each had its own ideal, as machines differ from round to
    round. rounds: the row's answers, plain decoding's, and what passes cost; one without passes of
    both is left out. None where another has no ideal."""
    spent = least = 0.0
    for mine, plain, costs in rounds:
        if not all(any(a.passes for a in answers) for answers in (mine, plain)):
            continue
        one = _ideal(method, measure(mine, plain), measure(plain, plain), costs, size)
        if one is None:
            return None
        seconds = sum(answer.decoding for answer in without_failures(plain))
        spent, least = spent + seconds, least + seconds / one
    return spent / least if least else None


def _ideal(
    method: str, found: Measured, base: Measured, costs: Costs | None, size: int
) -> float | None:
    """The speedup that the tokens a pass allow at the passes' measured costs; None where these
    aren't known, as of batches that draft with something else than a model of their own."""
    if costs is None or not has_ideal(method, costs, size) or not found["target_passes"]:
        return None
    if method in costs["drafts"]:
        return ideal(found, base, costs, method, size)["from_pass_costs"]
    return _ideal_by_clock(found, base, costs, method)


def has_ideal(method: str, costs: Costs | None, size: int) -> bool:
    """Whether what its drafting costs is known: as passes of a model, or by the engine's clock."""
    if costs is None:
        return False
    return method in costs["drafts"] or (size == 1 and method not in (BASELINE, *_WIDER))


def _ideal_by_clock(found: Measured, base: Measured, costs: Costs, method: str) -> float | None:
    """Of what drafts with heads, parts of the target or several things in turn: drafting counts
    with the milliseconds of a step that the engine's clock has for it."""
    own, steps = machine(costs, method, base), measured_drafting(found)
    step = step_ms(steps, own, 1) + found["ms_per_step"]["draft"]
    return steps.tokens * own.plain_ms(1) / step
