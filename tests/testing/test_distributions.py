"""Distributions of texts, and tests of counts against them."""

from __future__ import annotations

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
