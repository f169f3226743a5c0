"""Distributions of texts, and tests of counts against them."""

from __future__ import annotations

from itertools import product

import pytest

from foretoken.testing import (
    chi_square,
    distance,
)


def test_chi_square_and_distance() -> None:
    """A fit, a misfit, the impossible, and rare bins put together."""
    distribution = {(0,): 0.5, (1,): 0.499, (2,): 0.001}
    assert chi_square({(0,): 500, (1,): 500}, distribution) > 0.5
    assert chi_square({(0,): 600, (1,): 400}, distribution) < 1e-6
    assert chi_square({(3,): 1}, distribution) == 0.0
    assert distance({(0,): 1.0}, {(0,): 0.75, (1,): 0.25}) == 0.25


def test_rare_bins_are_tested_with_others() -> None:
    """One sample of what expects a tenth of one is no misfit, and what expects nothing is no
    degree of freedom."""
    assert chi_square({(0,): 3999, (1,): 1}, {(0,): 0.99999, (1,): 0.00001}) > 0.9
    with_nothing = {(0,): 0.5, (1,): 0.5, (2,): 0.0}
    counts = {(0,): 540, (1,): 460}
    assert chi_square(counts, with_nothing) == chi_square(counts, {(0,): 0.5, (1,): 0.5})
    assert chi_square({(0,): 5}, {(0,): 1.0}) == 1.0


@pytest.mark.parametrize("counts", [{}, {(0, 0): 30}])
def test_samples_that_test_nothing(counts: dict[tuple[int, ...], int]) -> None:
    """All on one text of nine, but too few to say so."""
    distribution = {pair: 1 / 9 for pair in product(range(3), repeat=2)}
    with pytest.raises(ValueError, match=r"no samples|too few"):
        chi_square(counts, distribution)
    assert chi_square({(0, 0): 90}, distribution) < 1e-6
