"""Bootstrap intervals: against a normal theory, where BCa is undefined, and their seed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.bench.measure.bootstrap import Floats, interval


def ratio(totals: Floats) -> Floats:
    """Of the first column's total to the second's."""
    return totals[..., 0] / totals[..., 1]


def pairs(count: int) -> Floats:
    """Groups whose second number is 1 and whose first is normal around 10."""
    return np.stack([np.random.default_rng(1).normal(10, 2, count), np.ones(count)], -1)


@pytest.mark.parametrize(("tail", "deviations"), [(0.025, 1.96), (0.16, 0.994)])
def test_the_interval_of_a_mean_is_the_normal_one(tail: float, deviations: float) -> None:
    """Of 200 normal numbers: the mean and so many standard errors to either side."""
    groups = pairs(200)
    error = groups[:, 0].std() / np.sqrt(200)
    low, high = interval(groups, ratio, tail=tail, resamples=10_000) or (0.0, 0.0)
    assert low == pytest.approx(groups[:, 0].mean() - deviations * error, abs=0.05 * error * 2)
    assert high == pytest.approx(groups[:, 0].mean() + deviations * error, abs=0.05 * error * 2)


def test_the_same_data_have_the_same_interval() -> None:
    """However often it is asked for: the resamples are drawn with one seed."""
    first, second = (interval(pairs(20), ratio, tail=0.025, resamples=500) for _ in range(2))
    assert first == second


def test_equal_groups_have_a_point() -> None:
    """All resamples are equal, so there is no acceleration and no bias to correct for."""
    assert interval(np.full((5, 2), 3.0), ratio, tail=0.025, resamples=100) == (1.0, 1.0)


def test_one_group_has_no_interval() -> None:
    """Nothing can be drawn but the group itself."""
    assert interval(pairs(1), ratio, tail=0.025, resamples=100) is None


def test_a_resample_without_a_value_has_no_interval() -> None:
    """Half of the resamples of two groups divide by zero."""
    assert interval(np.array([[1.0, 0.0], [1, 0]]), ratio, tail=0.1, resamples=100) is None


def test_scipy_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it one sentence says what to install."""
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ForetokenError, match=r"needs scipy; .*foretoken\[bench\]"):
        interval(pairs(5), ratio, tail=0.025, resamples=100)
