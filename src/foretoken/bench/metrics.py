"""From measured answers to the numbers of results.json. docs/metrics.md defines each of them.

Prompts are the unit of everything statistical: the turns of a conversation count as one prompt,
and the bootstrap draws prompts, each with its measurements of both methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from foretoken.bench.record import LATENCIES, Answer, Identity, Measured, Run

RESAMPLES = 2_000
DISTINCT_4 = 0.8
"""A plain greedy answer with a smaller share of different 4-grams loops, and is left out."""

_WORST = ("identical", "near_tie", "different")


def distinct_4(tokens: Seq[int]) -> float:
    """Different 4-grams over all 4-grams; 1 where there are none."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def looping(plain: Iterable[Answer], threshold: float = DISTINCT_4) -> list[str]:
    """Prompts of which plain greedy decoding answered some turn with a loop."""
    found = {a.id for a in plain if distinct_4(a.token_ids) < threshold}
    return sorted(found)


def by_prompt(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """A prompt's turns, under its id."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.id, []).append(answer)
    return groups


def bootstrap(
    tokens: Seq[float], seconds: Seq[float], plain_tokens: Seq[float], plain_seconds: Seq[float]
) -> list[float] | None:
    """95 % interval of the speedup over prompts, or None where there are fewer than two.

    One number a prompt in each list. The speedup is computed again from each resample's totals.
    """
    count = len(tokens)
    if count < 2:
        return None
    chosen = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    a, b, c, d = (
        np.asarray(x, dtype=float)[chosen].sum(1)
        for x in (tokens, seconds, plain_tokens, plain_seconds)
    )
    low, high = np.percentile((a / b) / (c / d), [2.5, 97.5])
    return [float(low), float(high)]


def measure(answers: Seq[Answer], plain: Seq[Answer]) -> Measured:
    """One method's numbers over the prompts of `answers`; `plain` answered the same prompts."""
    mine, theirs = by_prompt(answers), by_prompt(plain)
    shared = [key for key in mine if key in theirs]
    tokens, seconds = _totals(mine, shared)
    plain_tokens, plain_seconds = _totals(theirs, shared)
    passes = sum(a.passes for a in answers)
    drafted = sum(a.drafted for a in answers)
    written = sum(len(a.token_ids) for a in answers)
    spent = sum(a.decoding for a in answers)
    speedup = None
    if sum(seconds) and sum(plain_tokens):
        speedup = (sum(tokens) / sum(seconds)) / (sum(plain_tokens) / sum(plain_seconds))
    return {
        "tokens_per_second": written / spent if spent else None,
        "speedup": speedup,
        "speedup_ci95": bootstrap(tokens, seconds, plain_tokens, plain_seconds),
        "mean_acceptance_length": written / passes if passes else None,
        "draft_acceptance_rate": sum(sum(a.accepted) for a in answers) / drafted
        if drafted
        else None,
        "acceptance_rate_per_position": _per_position(answers),
        "ms_per_step": _per_step(answers, passes),
        "target_passes": passes,
        "tokens": written,
        "latency_ms": _latency(answers),
        "peak_memory_mib": max((a.peak_memory_mib or 0.0 for a in answers), default=0.0) or None,
        "identical_to_autoregressive": _identity(mine),
    }


def _totals(groups: Mapping[str, list[Answer]], keys: Seq[str]) -> tuple[list[int], list[float]]:
    """(tokens, decoding seconds) of each prompt."""
    tokens = [sum(len(a.token_ids) for a in groups[key]) for key in keys]
    return tokens, [sum(a.decoding for a in groups[key]) for key in keys]


def _per_position(answers: Seq[Answer]) -> list[float]:
    depth = max((len(a.drafted_at) for a in answers), default=0)
    drafted, accepted = [0] * depth, [0] * depth
    for answer in answers:
        for i, (tried, kept) in enumerate(zip(answer.drafted_at, answer.accepted_at, strict=True)):
            drafted[i] += tried
            accepted[i] += kept
    return [kept / tried for kept, tried in zip(accepted, drafted, strict=True)]


def _per_step(answers: Seq[Answer], passes: int) -> dict[str, float]:
    parts = ("draft", "verify", "other")
    return {p: 1000 * sum(a.seconds[p] for a in answers) / max(1, passes) for p in parts}


def _latency(answers: Seq[Answer]) -> dict[str, float | None]:
    first = [1000 * a.seconds["ttft"] for a in answers]
    rest = [
        1000 * (a.seconds["total"] - a.seconds["ttft"]) / (len(a.token_ids) - 1)
        for a in answers
        if len(a.token_ids) > 1
    ]
    values = [
        float(np.percentile(times, share)) if times else None
        for times in (first, rest)
        for share in (50, 99)
    ]
    return dict(zip(LATENCIES, values, strict=True))


def _identity(groups: Mapping[str, list[Answer]]) -> Identity | None:
    """A prompt is as good as its worst turn; None where the very tokens are not claimed."""
    worst: list[str] = []
    for answers in groups.values():
        found = [a.sameness for a in answers if a.sameness is not None]
        if len(found) < len(answers):
            return None
        worst.append(max(found, key=_WORST.index))
    if not worst:
        return None
    return {
        "prompts": len(worst),
        "identical": worst.count("identical"),
        "near_tie": worst.count("near_tie"),
        "different": worst.count("different"),
    }


def runs(answers: Seq[Answer], left_out: Seq[str], *, baseline: str, repeats: int) -> list[Run]:
    """Every method at every temperature, in the order in which they first occur."""
    kept = [a for a in answers if a.id not in set(left_out)]
    keys = dict.fromkeys((a.method, a.temperature) for a in answers)
    tasks = list(dict.fromkeys(a.task for a in answers))
    return [
        _run(kept, tasks, method, temperature, baseline, repeats)
        for method, temperature in sorted(keys, key=lambda key: key[1])
    ]


def _run(
    kept: Seq[Answer], tasks: Seq[str], method: str, temperature: float, baseline: str, repeats: int
) -> Run:
    here = [a for a in kept if a.temperature == temperature]
    mine = [a for a in here if a.method == method]
    plain = [a for a in here if a.method == baseline]
    by_task = {
        task: measure([a for a in mine if a.task == task], [a for a in plain if a.task == task])
        for task in tasks
        if any(a.task == task for a in mine)
    }
    return {
        "method": method,
        "temperature": temperature,
        "batch_size": 1,
        "repeats": repeats,
        "prompts": len({a.id for a in mine}),
        **measure(mine, plain),
        "by_task": by_task,
    }
