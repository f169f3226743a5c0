"""Repetition: the share of different 4-grams."""

from __future__ import annotations

import pytest

from foretoken.repetition import DISTINCT_4, distinct_4


@pytest.mark.parametrize(
    "tokens, share",
    [([], 1.0), ([1, 2, 3], 1.0), ([1, 2, 3, 4, 5], 1.0), ([1, 1, 1, 1, 1], 0.5)],
)
def test_share_of_different_4_grams(tokens: list[int], share: float) -> None:
    """Different 4-grams over all; a text too short to have one doesn't repeat itself."""
    assert distinct_4(tokens) == share


def test_a_loop_is_below_the_bound() -> None:
    """A phrase of five tokens again and again loops; counting doesn't."""
    assert distinct_4([1, 2, 3, 4, 5] * 10) < DISTINCT_4 < distinct_4(list(range(50)))
