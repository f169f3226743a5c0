"""Coupled sampling: the race draws the distribution; the text depends on target and seed alone."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from foretoken import SamplingParams
from foretoken.drafters.merged import Merged
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.draws import (
    place_key,
    stream_key,
)
from foretoken.testing import Drawn, Pair, serve
from foretoken.verify.gumbel import Gumbel, GumbelDraws, uniform_by_token
from rule_tables import CPU, DRAWN, REST, tables

MANY = 8_000


@cache
def keys() -> list[int]:
    return [stream_key(seed, 0) for seed in range(MANY)]


def race(position: int = 7) -> GumbelDraws:
    return GumbelDraws(keys(), [position] * MANY, CPU)


def agreement(p: Tensor, q: Tensor) -> float:
    """Σ_x 1 / Σ_y max(p_y / p_x, q_y / q_x): how often two races with one noise agree."""
    both = [x for x in range(len(p)) if p[x] > 0 and q[x] > 0]
    return sum(1 / float(torch.maximum(p / p[x], q / q[x]).sum()) for x in both)


def test_the_race_draws_the_distribution() -> None:
    """Any mass, zeros never; target's pick and draft's draw are one race of the position."""
    weights = torch.tensor([3.0, 0.0, 1.0, 4.0, 2.0], dtype=torch.float64)
    depth = torch.full((MANY, 1), 2)
    found = race().pick(weights.expand(MANY, 1, -1), depth)[:, 0]
    assert found.equal(race().draft(weights.expand(MANY, -1), 2))
    assert found.equal(race(position=9).pick(weights.expand(MANY, 1, -1), depth * 0)[:, 0])
    seen = found.bincount(minlength=5)
    kept = torch.tensor([0, 2, 3, 4])
    assert seen[1] == 0
    assert stats.chisquare(seen[kept], weights[kept] / 10 * MANY).pvalue > 1e-3


def test_the_next_place_is_a_draw_without_replacement() -> None:
    """First and second of the race have the distribution of successive draws."""
    distribution = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    first = race().draft(distribution.expand(MANY, -1), 0)
    second = race().draft(distribution.repeat(MANY, 1).scatter(1, first[:, None], 0.0), 0, 1)
    seen = (3 * first + second).bincount(minlength=9)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    expected = [
        float(distribution[a] * distribution[b] / (1 - distribution[a])) * MANY for a, b in pairs
    ]
    assert stats.chisquare([int(seen[3 * a + b]) for a, b in pairs], expected).pvalue > 1e-3


def test_coupled_agreement() -> None:
    """The measured rate is the formula's, which is above (1 - TV) / (1 + TV)."""
    p, q = (t[:, 0] for t in tables(5, 0))
    for one, other in zip(p[:12], q[:12], strict=True):
        rate, apart = agreement(one, other), float((one - other).abs().sum() / 2)
        assert rate >= (1 - apart) / (1 + apart) - 1e-12
        mine = race().pick(one.expand(MANY, 1, -1), torch.zeros(MANY, 1, dtype=torch.long))[:, 0]
        found = float((mine == race().draft(other.expand(MANY, -1), 0)).double().mean())
        assert abs(found - rate) <= 4.5 * (rate * (1 - rate) / MANY) ** 0.5 + 1e-9


def test_coupled_text_does_not_depend_on_the_drafter(pair: Pair) -> None:
    """Token for token what plain decoding writes with the same race, from any drafter."""
    params = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=20, seed=5, ignore_eos=True)
    prompts = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3]]

    def written(drafter: Any, slots: int = 2) -> tuple[list[list[int]], float]:
        outputs = serve(pair.target, drafter, Gumbel(), prompts, params, slots=slots)
        steps = sum(output.stats.passes for output in outputs)
        return [output.token_ids for output in outputs], steps

    plain, most = written(Nothing())
    drafters = [
        SmallLM(pair.draft, 3),
        PromptLookup(3),
        Drawn(pair.draft, (1, 1), REST),
        Drawn(pair.draft, (2, 1), REST),
        Drawn(pair.draft, (2, 1), DRAWN),
    ]
    for drafter in drafters:
        for slots in (1, 2):
            text, steps = written(drafter, slots)
            assert text == plain
            assert steps < most or isinstance(drafter, PromptLookup)


def test_parts_of_a_tree_race_with_the_target(pair: Pair) -> None:
    """Beside another drafter, too: what has the target's distribution drafts its tokens."""
    params = SamplingParams(temperature=0.9, max_tokens=40, seed=5, ignore_eos=True)
    trees = [
        Merged([PromptLookup(1), SmallLM(pair.target, 3)]),
        SmallTree(models=[pair.draft, pair.target], widths=(1, 1, 1), replacement=True),
    ]
    for drafter in trees:
        [output] = serve(pair.target, drafter, Gumbel(), [[5, 9, 2, 5, 9, 2, 5]], params)
        assert output.stats.passes < 40 / 4 + 4  # the last ones have no room for all nodes


def test_each_token_has_a_number_of_its_own() -> None:
    """The clocks of a race: uniform, and independent of another token's and another position's."""
    here, there = (place_key(torch.tensor(keys()), torch.tensor([place])) for place in (5, 6))
    streams = [*uniform_by_token(here[:, None], 40)[:, [0, 1, 2, 17, 39]].unbind(1)]
    streams += [*uniform_by_token(there[:, None], 2).T]
    for one in streams:
        assert stats.kstest(one.numpy(), "uniform").pvalue > 1e-3
    for one, other in itertools.combinations(streams, 2):
        cells = ((one * 8).long() * 8 + (other * 8).long()).bincount(minlength=64)
        assert stats.chisquare(cells.numpy()).pvalue > 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_race_draws_the_distribution(dtype: torch.dtype) -> None:
    """The winner has the distribution, never probability 0; a sure token wins whatever its
    number."""
    distribution = torch.tensor([0.5, 0.0, 0.25, 0.125, 0.125], dtype=dtype)
    draws = GumbelDraws(keys(), [4] * MANY, CPU)
    found = draws.pick(distribution.expand(MANY, 1, -1), torch.zeros(MANY, 1, dtype=torch.long))
    counts = found.flatten().bincount(minlength=5)
    assert counts[1] == 0
    kept = [0, 2, 3, 4]
    assert (
        stats.chisquare(counts[kept].numpy(), distribution[kept].double().numpy() * MANY).pvalue
        > 1e-3
    )
    sure = torch.nn.functional.one_hot(torch.tensor(3), 5).to(dtype).expand(MANY, 1, -1)
    assert (draws.pick(sure, torch.zeros(MANY, 1, dtype=torch.long)) == 3).all()
