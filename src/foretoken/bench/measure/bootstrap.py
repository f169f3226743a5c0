"""Bootstrap intervals of ratios of totals, over the groups that were served together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretoken.bench.measure.library import library

Floats = NDArray[np.float64]

_BATCH = 2_000_000  # numbers drawn at once: 16 MB


def interval(
    groups: Floats, statistic: Callable[[Floats], Floats], *, tail: float, resamples: int
) -> tuple[float, float] | None:
    """The BCa interval (Efron, 1987) of a statistic of the groups' totals.

    groups: [groups, …], drawn with replacement. statistic: totals [resamples, …] -> [resamples].
    tail: the share beyond either end. The seed is fixed, so equal data have equal intervals.

    Where BCa is undefined, as it is where all resamples are equal, the percentiles stand in for
    it. None where there are fewer than two groups, or where some resample has no value.
    Raises `ForetokenError` where scipy is not installed.
    """
    if len(groups) < 2:
        return None
    stats = library("scipy.stats")

    def of_drawn(drawn: NDArray[Any], axis: int) -> Floats:
        return statistic(_totals(groups, drawn))

    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (np.arange(len(groups)),),
            of_drawn,
            n_resamples=resamples,
            batch=max(1, _BATCH // len(groups)),
            vectorized=True,
            confidence_level=1 - 2 * tail,
            method="BCa",
            rng=np.random.default_rng(0),
        )
    ends = np.array(result.confidence_interval)
    if not np.isfinite(result.bootstrap_distribution).all():
        return None
    if not np.isfinite(ends).all():
        ends = np.quantile(result.bootstrap_distribution, [tail, 1 - tail])
    return float(ends[0]), float(ends[1])


def _totals(groups: Floats, drawn: NDArray[Any]) -> Floats:
    """[resamples, …] the sums over the groups drawn, `drawn` being their places [resamples, n].

    Counting how often each group was drawn makes of all these sums a single matrix product.
    """
    count, places = len(groups), drawn.reshape(-1, drawn.shape[-1]).astype(int)
    first = count * np.arange(len(places))[:, None]
    times = np.bincount((first + places).ravel(), minlength=len(places) * count)
    sums = times.reshape(-1, count) @ groups.reshape(count, -1)
    return sums.reshape(*drawn.shape[:-1], *groups.shape[1:])
