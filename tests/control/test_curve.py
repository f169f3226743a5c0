"""A cost curve goes through its points, never falls, and says how it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken.control.curve import Curve
from foretoken.errors import ForetokenError

POINTS = st.dictionaries(st.integers(1, 64), st.floats(0.1, 100), min_size=1)


def test_between_and_beyond() -> None:
    """Linear between points in whatever order they come, level before, as steep as last after."""
    curve = Curve({8: 40.0, 1: 30.0, 64: 96.0})
    assert [curve(t) for t in (1, 8, 64)] == [30.0, 40.0, 96.0]
    assert curve(4.5) == pytest.approx(35.0)
    assert curve(0.5) == 30.0
    assert curve(128) == pytest.approx(96 + 64 * (96 - 40) / 56)


def test_one_point_is_level() -> None:
    """Nothing says how it rises."""
    assert Curve({4: 7.0})(1) == Curve({4: 7.0})(400) == 7.0


def test_noise_does_not_make_it_fall() -> None:
    """Points in the wrong order count as their mean, however many they are."""
    curve = Curve({1: 20.0, 2: 25.0, 4: 21.0, 8: 23.0, 16: 40.0})
    assert [curve(size) for size in (1, 2, 3, 4, 8, 16)] == [20.0, 23.0, 23.0, 23.0, 23.0, 40.0]


@given(POINTS)
def test_as_near_to_the_points_as_can_be(points: dict[int, float]) -> None:
    """No other rising curve is nearer: against scipy's."""
    from scipy.optimize import isotonic_regression

    sizes = sorted(points)
    expected = isotonic_regression([points[size] for size in sizes]).x
    assert [Curve(points)(size) for size in sizes] == pytest.approx(list(expected))


@given(POINTS, st.floats(0.5, 200), st.floats(0, 50))
def test_never_falls(points: dict[int, float], tokens: float, more: float) -> None:
    """For any points, more tokens never cost less, up to rounding."""
    curve = Curve(points)
    assert curve(tokens + more) >= curve(tokens) * (1 - 1e-9)


@pytest.mark.parametrize(
    "points", [{}, {0: 1.0}, {1: 0.0}, {1: -2.0}, {1: float("nan")}, {1: float("inf")}]
)
def test_bad_points(points: dict[int, float]) -> None:
    """No points, no tokens, no time."""
    with pytest.raises(ForetokenError, match="at least one point"):
        Curve(points)
