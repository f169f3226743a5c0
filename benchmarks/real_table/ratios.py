"""Speeds, their ratios, and the intervals of these over prompts and rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretoken.bench.measure.bootstrap import Floats

RESAMPLES = 2_000
Spent = dict[tuple[int, str], tuple[float, float]]
"""(round, prompts served together) -> tokens and seconds."""


def rate(spent: Spent) -> float | None:
    """Tokens per second over all."""
    tokens, seconds = map(sum, zip(*spent.values(), strict=True)) if spent else (0, 0)
    return tokens / seconds if seconds > 0 else None


def ratio(over: Spent, under: Spent) -> dict[str, Any] | None:
    """{"ratio", "ci95"} of two speeds on the prompts that both have in every round, where a stalled
    one has no tokens and no seconds; ci95 is None with fewer than two prompts. None where nothing
    is shared or no time passed."""
    numbers = sorted({number for number, _ in over} & {number for number, _ in under})
    shared = [
        group
        for group in dict.fromkeys(group for _, group in over)
        if all((n, group) in over and (n, group) in under for n in numbers)
    ]
    if not numbers or not shared:
        return None
    grid = np.array([[[*over[n, g], *under[n, g]] for g in shared] for n in numbers])
    grid = grid[grid.any((1, 2))][:, grid.any((0, 2))]  # without what stalled in all of it
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(_ratios(grid.sum((0, 1))[None])[0])
    return {"ratio": value, "ci95": _interval(grid)} if np.isfinite(value) else None


def _ratios(totals: Floats) -> Floats:
    """[resamples, 4] -> [resamples]."""
    tokens, seconds, plain_tokens, plain_seconds = np.moveaxis(totals, -1, 0)
    found: Floats = (tokens / seconds) / (plain_tokens / plain_seconds)
    return found


def _interval(grid: Floats) -> list[float] | None:
    """grid: [rounds, prompts, 4]. The percentiles of the ratios of prompts × rounds drawn."""
    rounds, prompts, _ = grid.shape
    if prompts < 2:
        return None
    random = np.random.default_rng(0)
    of_prompts = random.multinomial(prompts, np.full(prompts, 1 / prompts), RESAMPLES)
    of_rounds = random.multinomial(rounds, np.full(rounds, 1 / rounds), RESAMPLES)
    totals = np.einsum("sr,sp,rpk->sk", of_rounds, of_prompts, grid, optimize=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _ratios(totals[totals.any(1)])  # a draw may be of nothing but what stalled
    ends = np.quantile(found, [0.025, 0.975])
    return [float(end) for end in ends] if np.isfinite(found).all() else None
