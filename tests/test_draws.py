"""The random numbers: uniform, keyed by what they are for, and never a token of probability 0."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from foretoken import SamplingParams
from foretoken.draws import (
    GOLDEN,
    GreedyDraws,
    KeyedDraws,
    Purpose,
    _spread,
    draft_index,
    inverse_cdf,
    mix,
    stream_key,
    uniforms,
)
from foretoken.sampling.sequence import Sequence, draws_for

CPU = torch.device("cpu")
MANY = 8_000


@cache
def seed_keys() -> list[int]:
    return [stream_key(seed, 0) for seed in range(MANY)]


def numbers(
    purpose: Purpose, *, seeds: int = MANY, position: int = 5, index: int = 0
) -> torch.Tensor:
    keys = torch.tensor(seed_keys()[:seeds])
    return uniforms(keys, torch.tensor(position), purpose, index)


@pytest.mark.parametrize("purpose", Purpose)
def test_uniform_over_seeds(purpose: Purpose) -> None:
    """Neighbouring seeds give numbers that no Kolmogorov-Smirnov test tells from uniform ones."""
    assert stats.kstest(numbers(purpose).numpy(), "uniform").pvalue > 1e-3


def test_uniform_along_one_seed() -> None:
    """So do the positions, and the indices, of one seed."""
    key = torch.tensor(stream_key(3, 0))
    walk = torch.arange(MANY)
    for found in (
        uniforms(key, walk, Purpose.TOKEN),
        uniforms(key, walk[:1], Purpose.ACCEPT, walk),
    ):
        assert stats.kstest(found.numpy(), "uniform").pvalue > 1e-3
        assert stats.kstest(((found[1:] + found[:-1]) % 1).numpy(), "uniform").pvalue > 1e-3


def test_purposes_samples_and_places_are_independent() -> None:
    """Every two streams pass a chi-square of their joint distribution on an 8 × 8 grid."""
    streams = [
        numbers(Purpose.TOKEN),
        numbers(Purpose.ACCEPT),
        numbers(Purpose.DRAFT),
        numbers(Purpose.TOKEN, position=6),
        numbers(Purpose.ACCEPT, position=6),
        numbers(Purpose.ACCEPT, index=1),
        numbers(Purpose.DRAFT, index=1),
        numbers(Purpose.DRAFT, index=1 << 16),
    ]
    for one, other in itertools.combinations(streams, 2):
        cells = ((one * 8).long() * 8 + (other * 8).long()).bincount(minlength=64)
        assert stats.chisquare(cells.numpy()).pvalue > 1e-5


def test_streams_differ_by_seed_and_sample() -> None:
    """No two of many (seed, sample) pairs share a key; large and negative seeds are fine."""
    pairs = [(seed, sample) for seed in (*range(300), 2**40, 2**62, -1) for sample in range(8)]
    assert len({stream_key(*pair) for pair in pairs}) == len(pairs)


def test_numbers_do_not_depend_on_the_batch() -> None:
    """A row's draws are the same alone, among others, and after `take`."""
    distributions = torch.rand(3, 4, 10, dtype=torch.float64)
    depths, keys, starts = torch.arange(4).expand(3, -1), [11, 12, 13], [7, 70, 9]
    whole = KeyedDraws(keys, starts, CPU)
    taken = whole.take([2, 0])
    for row, draws in ((1, KeyedDraws([12], [70], CPU)),):
        assert whole.pick(distributions, depths)[row].equal(
            draws.pick(distributions[row : row + 1], depths[:1])[0]
        )
        assert whole.accept(distributions[..., 0])[row].equal(
            draws.accept(distributions[row : row + 1, :, 0])[0]
        )
        assert (
            whole.draft(distributions[:, 0], 2)[row]
            == draws.draft(distributions[row : row + 1, 0], 2)[0]
        )
    assert taken.pick(distributions[[2, 0]], depths[:2]).equal(
        whole.pick(distributions, depths)[[2, 0]]
    )


def test_a_position_has_one_number() -> None:
    """A token's noise is its position's, from wherever the step that draws it starts."""
    distributions = torch.rand(1, 4, 50, dtype=torch.float64)
    early = KeyedDraws([5], [10], CPU).pick(distributions, torch.tensor([[0, 1, 2, 3]]))
    late = KeyedDraws([5], [12], CPU).pick(distributions[:, 2:], torch.tensor([[0, 1]]))
    assert early[0, 2:].equal(late[0])


def test_parts_and_their_steps_draw_by_numbers_of_their_own() -> None:
    """No number of a step returns in its parts, in their parts, or in the steps that a part makes
    at one place of the text; and none depends on the company."""
    outer = KeyedDraws([5, 6], [10, 20], CPU)
    parts = [outer.inner(0), outer.inner(1), outer.inner(0).inner(1), outer.inner(1).inner(0)]
    steps = [outer.inner(0, [length, length + 10]) for length in (11, 12)]
    seen = torch.stack(
        [
            draws.noise(purpose, index=index)
            for draws in (outer, *parts, *steps)
            for purpose in (Purpose.TOKEN, Purpose.ACCEPT, Purpose.DRAFT)
            for index in (0, 1)
        ]
    )
    assert len(seen.unique()) == seen.numel()
    alone = outer.take([1]).inner(1, [30])
    together = outer.inner(1, [12, 30])
    assert alone.noise(Purpose.ACCEPT)[0] == together.noise(Purpose.ACCEPT)[1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-17, 1e-9, 0.3, 1.0, 7.0]), min_size=2, max_size=9),
    st.sampled_from([0.0, 2.0**-53, 0.25, 0.5, 1 - 2.0**-53]),
)
def test_never_an_impossible_token(weights: list[float], uniform: float) -> None:
    """Whatever the weights and the number, the token drawn has a positive weight."""
    distribution = torch.tensor(weights, dtype=torch.float64)
    if distribution.sum() > 0:
        assert (
            distribution[inverse_cdf(distribution, torch.tensor(uniform, dtype=torch.float64))] > 0
        )


def test_no_two_draws_of_a_draft_have_one_number() -> None:
    """However deep it is, and however many siblings there are."""
    depths = (0, 1, 7, 8, 15, 16, 17, 255, 256, 4095)
    places = list(itertools.product(depths, (0, 1, 2, 300)))
    assert len({draft_index(*place) for place in places}) == len(places)


def test_inverse_cdf_draws_the_distribution() -> None:
    """Unnormalised distributions too, in float32 as in float64."""
    weights = torch.tensor([3.0, 0.0, 1.0, 4.0])
    for dtype in (torch.float32, torch.float64):
        distribution = weights.to(dtype).expand(MANY, -1)
        found = inverse_cdf(distribution, numbers(Purpose.TOKEN)).bincount(minlength=4)
        assert found[1] == 0
        expected = weights[[0, 2, 3]] / weights.sum() * MANY
        assert stats.chisquare(found[[0, 2, 3]].numpy(), expected.numpy()).pvalue > 1e-3


def test_acceptance_is_certain_at_the_ends() -> None:
    """Probability 1 is always accepted, 0 and NaN never."""
    draws = KeyedDraws(list(range(500)), [3] * 500, CPU)
    sure = torch.tensor([1.0, 0.0, torch.nan]).expand(500, -1)
    assert draws.accept(sure).float().mean(0).tolist() == [1.0, 0.0, 0.0]


def test_greedy_draws_compute_nothing() -> None:
    """One-hot distributions: the same outcomes as with keyed numbers; a mixed batch uses those."""
    one_hot = torch.nn.functional.one_hot(torch.tensor([[2, 0], [1, 1]]), 4).double()
    depths = torch.zeros(2, 2, dtype=torch.long)
    keyed = KeyedDraws([1, 2], [4, 5], CPU)
    for draws in (GreedyDraws(), keyed):
        assert draws.pick(one_hot, depths).tolist() == [[2, 0], [1, 1]]
        assert draws.draft(one_hot[:, 0], 0).tolist() == [2, 1]
        assert draws.accept(one_hot[..., 2]).tolist() == [[True, False], [False, False]]
    greedy = Sequence.start([1], SamplingParams(temperature=0))
    other = Sequence.start([1], SamplingParams(), seed=1)
    assert isinstance(draws_for([greedy, greedy], CPU), GreedyDraws)
    assert isinstance(draws_for([greedy, other], CPU), KeyedDraws)


def test_keys_are_mixed_like_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is worked out with Python's integers, to the bit what the tensors give."""
    pairs = [(0, 0), (7, 3), (2**62 + 5, 1), (2**63 - 1, 2), (2**64 + 3, 9), (-1, 0), (-9, 40)]
    expected = []
    for seed, sample in pairs:
        start = torch.tensor([seed & ((1 << 63) - 1)]) + GOLDEN
        expected.append(int(mix(mix(start) + _spread(sample + 1))))
    monkeypatch.delattr(torch, "tensor")  # of one number it takes longer than the mixing
    assert [stream_key(*pair) for pair in pairs] == expected
