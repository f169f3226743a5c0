"""Distributions of texts, and tests of counts against them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from scipy import stats

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.testing import (
    TableModel,
    chi_square,
    distance,
    joint_distribution,
    sampled_counts,
)
from foretoken.verify.target_only import TargetOnly


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


def test_chi_square_is_pearsons() -> None:
    """Of three bins, against another implementation; a single bin that expects little is no
    reason to refuse."""
    counts = {(0,): 50, (1,): 30, (2,): 20}
    distribution = {(0,): 0.4, (1,): 0.35, (2,): 0.25}
    expected = [100 * p for p in distribution.values()]
    p = stats.chisquare([*counts.values()], expected).pvalue
    assert chi_square(counts, distribution) == pytest.approx(p)
    assert chi_square({(0,): 3}, {(0,): 1.0}) == 1.0


def test_each_sample_has_a_seed_of_its_own() -> None:
    """Whatever batch it is in: the same samples are taken together and in parts."""
    table, params = TableModel.random(4), SamplingParams()
    whole, parts = (
        sampled_counts(table, Nothing, TargetOnly(), [0, 1], params, 3, 40, seed=5, rows=rows)
        for rows in (40, 7)
    )
    assert whole == parts and whole.total() == 40 and len(whole) > 10


class Moody(TableModel):
    """Another distribution at each pass."""

    def forward(self, *given):  # type: ignore[no-untyped-def]
        self.table = self.table.flip(-1)
        return super().forward(*given)


def test_chance_outside_of_draws_is_noticed() -> None:
    """The outcomes then don't add up to 1."""
    table = Moody.markov(torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    with pytest.raises(AssertionError, match=r"probabilities sum to 1\.5"):
        joint_distribution(table, Nothing, TargetOnly(), [0], SamplingParams(), 1)
