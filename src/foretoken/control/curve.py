"""What a model's pass costs by its number of tokens: a few measured points, interpolated.

Speculation depends on this curve: where it is level, drafted tokens are verified for free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foretoken.errors import ForetokenError, shown


@dataclass(frozen=True)
class Curve:
    """Milliseconds of a pass by its tokens, e.g. Curve({1: 30, 8: 33, 64: 60}).

    Linear between the points, level before the first, and after the last as steep as between the
    last two. It never falls: where a larger pass was measured faster, both count as their mean
    (isotonic regression by pooling adjacent violators, Ayer et al. 1955).

    Raises:
        ForetokenError: without a point, or where one is not a positive number of tokens and a
            positive, finite time.
    """

    points: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.points or not all(
            size >= 1 and 0 < ms < math.inf for size, ms in self.points.items()
        ):
            raise ForetokenError(
                "A cost curve needs at least one point, each a number of tokens from 1 on with a "
                f"positive time in milliseconds; given {shown(dict(self.points))}."
            )

    def __call__(self, tokens: float) -> float:
        sizes, times = self._sorted
        if tokens > sizes[-1] and len(sizes) > 1:
            slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            return times[-1] + slope * (tokens - sizes[-1])
        return float(np.interp(tokens, sizes, times))

    def upto(self, most: int) -> list[float]:
        """[most + 1] `self(n)` of each n."""
        sizes, times = self._sorted
        table: list[float] = np.interp(range(min(most, sizes[-1]) + 1), sizes, times).tolist()
        return table + [self(size) for size in range(len(table), most + 1)]

    @cached_property
    def _sorted(self) -> tuple[list[int], list[float]]:
        sizes = sorted(self.points)
        return sizes, _rising([self.points[size] for size in sizes])


def _rising(times: Seq[float]) -> list[float]:
    """The nearest times (least squares) that never fall: those that fall are pooled to their
    mean."""
    pools: list[tuple[float, int]] = []  # mean, count
    for mean in times:
        count = 1
        while pools and pools[-1][0] > mean:
            last_mean, last_count = pools.pop()
            mean = (last_mean * last_count + mean * count) / (last_count + count)
            count += last_count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
