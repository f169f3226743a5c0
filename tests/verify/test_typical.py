"""Typical acceptance: its threshold, its choice of path, the distribution that it writes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from approximate_rules import CPU, EVEN, first_distribution, greedy_chain, scored
from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.draws import KeyedDraws
from foretoken.protocols import Verifier
from foretoken.testing import (
    Drawn,
    Pair,
    check_distribution,
    check_seeded,
    logits_after,
    table_pair,
)
from foretoken.tree import chains
from foretoken.trees.from_lists import from_paths
from foretoken.verify.typical import Typical
from test_distribution import chosen_tree


def test_typical_threshold_by_hand() -> None:
    """At a temperature a token passes above min(epsilon, delta · exp(-entropy))."""
    distributions = [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.25, 0.5, 0.25]]
    trees = chains([[1, 2]], CPU)
    entropy = -sum(p * math.log(p) for p in distributions[0])
    for epsilon, delta, kept in (
        (0.199, 9.0, 2),  # 0.2 > 0.199 and then 0.2 > 0.199
        (0.2001, 9.0, 0),
        (1.0, 0.199 * math.exp(entropy), 2),  # the second place is more uncertain: easier
        (1.0, 0.201 * math.exp(entropy), 0),
        (0.0, 0.0, 2),
        (1.0, 3.0, 0),  # exp(-entropy) is at least 1/3: nothing exceeds 1
    ):
        found = Typical(epsilon, delta)(
            trees, scored([distributions], 1), KeyedDraws([1], [5], CPU)
        )
        assert int(found.lengths[0]) == kept, (epsilon, delta)


def test_typical_prefers_the_likeliest_of_the_longest() -> None:
    """Medusa's choice between candidates: the longest accepted, then the likeliest."""
    trees = from_paths([[[0, 1], [1, 2], [1, 0], [2]]], CPU)  # slots 1, 2 | 3, 4, 5 | 6
    distributions = [
        [[0.3, 0.4, 0.3], [0.1, 0.6, 0.3], [0.4, 0.3, 0.3], [0.3, 0.3, 0.4], *[[1, 0, 0]] * 3]
    ]
    found = Typical(epsilon=0.0)(trees, scored(distributions, 1), KeyedDraws([1], [5], CPU))
    assert found.path[0, : found.lengths[0]].tolist() == [1, 2]  # .3 × .6 beats .4 × .4
    distributions[0][1] = [0.25, 0.5, 0.25]
    found = Typical(epsilon=0.0)(trees, scored(distributions, 1), KeyedDraws([1], [5], CPU))
    assert found.path[0, : found.lengths[0]].tolist() == [3, 4]


def test_distribution_of_typical() -> None:
    """A drafted token that passes keeps the drafter's probability, the rest is the target's."""
    pair = table_pair(4, seed=2)
    p, q = (logits_after(m, [0, 1, 0]).softmax(-1) for m in (pair.target, pair.draft))
    rule = Typical(0.2, 9.0)
    passed = torch.where(p > 0.2, q, 0)
    assert 0 < passed.sum() < 1
    found = first_distribution(pair, rule, lambda pr: Drawn(pr.draft, (1,)))
    assert torch.allclose(found, passed + (1 - passed.sum()) * p, rtol=0, atol=1e-12)


def test_typical_trees_in_the_limit() -> None:
    """A threshold of 1 refuses every node: the target's own distribution, and text, with any
    tree."""
    check_distribution(
        chosen_tree,
        Typical(1.0, 99.0),
        table_pair(3),
        SamplingParams(),
        3,
        rows=256,
        budget=3,
        steps=1,
    )


def test_typical_without_tolerance_keeps_the_text(pair: Pair) -> None:
    """Token for token plain decoding's, at any temperature."""
    check_seeded(lambda pr: PromptLookup(), Typical(1.0, 99.0), pair, slots=3)


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        (Typical(), [0, 1, 0], ([0, 0], 0)),
    ],
    ids=str,
)
def test_typical_by_hand(rule: Verifier, draft: list[int], expected: tuple[list[int], int]) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Typical(epsilon=2), r"in \[0, 1\]"),
        (lambda: Typical(delta=-1), "at least 0"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()
