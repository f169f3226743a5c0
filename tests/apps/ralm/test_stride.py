"""OS³ chooses the stride that the paper's formulas make best, from what it has seen."""

from __future__ import annotations

import random

import pytest

from foretoken import ForetokenError
from foretoken.apps.ralm.stride import (
    FixedStride,
    OptimalStride,
    Round,
    asynchronous_rate,
    expected,
    synchronous_rate,
)


def simulated(pieces: int, rate: float, a: float, b: float, asynchronous: bool) -> float:
    """Pieces that many rounds settle, by their seconds, with guesses that are right at random."""
    chance, settled, seconds = random.Random(0), 0, 0.0
    for _ in range(40_000):
        matched = 0
        while matched < pieces and chance.random() < rate:
            matched += 1
        settled += min(matched + 1, pieces)
        whole = matched == pieces
        seconds += (pieces - 1) * a + max(a, b) if asynchronous and whole else pieces * a + b
    return settled / seconds


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize(("rate", "a", "b"), [(0.6, 1.0, 4.0), (0.3, 2.0, 1.0), (0.0, 1.0, 1.0)])
def test_the_formulas_are_what_rounds_take(pieces: int, rate: float, a: float, b: float) -> None:
    assert synchronous_rate(pieces, rate, a, b) == pytest.approx(
        simulated(pieces, rate, a, b, False), rel=0.02
    )
    assert asynchronous_rate(pieces, rate, a, b) == pytest.approx(
        simulated(pieces, rate, a, b, True), rel=0.02
    )


def test_by_hand() -> None:
    """γ = 0.5, s = 2, a = 1, b = 3."""
    assert expected(2, 0.5) == 1.5
    assert synchronous_rate(2, 0.5, 1, 3) == 1.5 / 5
    assert asynchronous_rate(2, 0.5, 1, 3) == 1.5 / (0.25 * 4 + 0.75 * 5)


def test_the_rate_of_the_last_rounds() -> None:
    """Five rounds count, guesses after a wrong one don't, and the bound holds."""
    stride = OptimalStride(False)
    assert stride.rate == 0
    for matched in (0, 0, 1, 0, 1, 0):
        stride.note(Round(3, matched, 1.0, 1.0))
    assert stride.rate == 2 / (2 + 5)
    for _ in range(5):
        stride.note(Round(3, 3, 1.0, 1.0))
    assert stride.rate == 0.6
    assert OptimalStride(False, highest_rate=0.9).rate == 0


def test_the_choice() -> None:
    """1 at first; longer where retrieval is slow and guesses are right; never more than is left."""
    stride = OptimalStride(False)
    assert stride.next(9) == 1
    stride.note(Round(4, 4, 1.0, 30.0))
    rates = [synchronous_rate(s, 0.6, 1.0, 30.0) for s in range(1, 10)]
    assert stride.next(9) == 1 + rates.index(max(rates)) > 4
    assert stride.next(3) == 3
    stride.note(Round(4, 4, 1.0, 0.01))
    assert stride.next(9) == 1
    for _ in range(5):
        stride.note(Round(1, 0, 1.0, 30.0))
    assert stride.next(9) == 1


def test_one_suffices_where_verification_is_hidden() -> None:
    """While a verification takes no longer than a piece, waiting with it gains nothing."""
    synchronous, asynchronous = OptimalStride(False), OptimalStride(True)
    for stride in (synchronous, asynchronous):
        stride.note(Round(2, 2, 1.0, 0.9))
    assert (synchronous.next(9), asynchronous.next(9)) == (2, 1)


def test_a_fixed_one() -> None:
    stride = FixedStride(3)
    stride.note(Round(3, 0, 1.0, 1.0))
    assert (stride.next(9), stride.next(2)) == (3, 2)


def test_the_bound_of_the_rate() -> None:
    with pytest.raises(ForetokenError, match="highest_rate is 1"):
        OptimalStride(False, highest_rate=1.0)
