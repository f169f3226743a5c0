"""Lenience: speculative sampling at 1, and the distribution that it writes below."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from approximate_rules import CPU, EVEN, first_distribution, greedy_chain, scored
from foretoken import ForetokenError
from foretoken.draws import KeyedDraws, stream_key
from foretoken.protocols import Verifier
from foretoken.testing import (
    Drawn,
    logits_after,
    table_pair,
)
from foretoken.tree import DraftTree, Kind
from foretoken.verify.lenience import Lenience, written_distributions
from foretoken.verify.speculative import Speculative


def test_lenience_one_is_speculative_sampling() -> None:
    """The same verdicts, number for number, as the exact rule's."""
    random = torch.Generator().manual_seed(5)
    distributions = torch.rand(200, 4, 6, generator=random, dtype=torch.float64).pow(3)
    distributions /= distributions.sum(-1, keepdim=True)
    q = torch.rand(200, 3, 6, generator=random, dtype=torch.float64).pow(3)
    q /= q.sum(-1, keepdim=True)
    tokens = torch.multinomial(q.view(-1, 6), 1, generator=random).view(200, 3)
    counts = [row % 4 for row in range(200)]
    trees = DraftTree(tokens, counts, kind=Kind.INDEPENDENT, proposals=q)
    draws = KeyedDraws(range(200), [9] * 200, CPU)
    one, exact = (
        rule(trees, scored(distributions.tolist(), 1), draws)
        for rule in (Lenience(1.0), Speculative())
    )
    assert torch.equal(one.lengths, exact.lengths) and torch.equal(one.token, exact.token)
    assert one.strayed is not None and not one.strayed.any()


@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.4, 0.1])
def test_distribution_of_lenience(lenience: float) -> None:
    """min(q, p/l) plus the residual's share; below p/l; and as close to p as that allows."""
    pair = table_pair(4, seed=2)
    p, q = (logits_after(m, [0, 1, 0]).softmax(-1) for m in (pair.target, pair.draft))
    passed = torch.minimum(q, p / lenience)
    residual = (p - q).clamp(min=0)
    expected = passed + (1 - passed.sum()) * residual / residual.sum()
    found = first_distribution(pair, Lenience(lenience), lambda pr: Drawn(pr.draft, (1,)))
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert bool((found <= p / lenience + 1e-12).all())
    forgiven = passed.sum() - torch.minimum(p, q).sum()
    assert float((found - p).abs().sum() / 2) == pytest.approx(float(forgiven))


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        (Lenience(1.0), [0, 1], ([0, 0], 0)),
        (Lenience(0.74), [1, 2], ([1, 0], 1)),
        (Lenience(0.76), [1, 2], ([0], 0)),
        (Lenience(0.49), [1, 2, 3], ([1, 2, 0], 2)),
    ],
    ids=str,
)
def test_lenience_by_hand(
    rule: Verifier, draft: list[int], expected: tuple[list[int], int]
) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lenience(0), "above 0"),
        (lambda: Lenience(1.5), "at most 1"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()


def test_the_second_test_has_a_number_of_its_own() -> None:
    """Over many seeds a token passes with p / (l · q) = 2/3; with one number for both tests it
    would with a half."""
    many = 4000
    q = torch.tensor([0.6, 0.4], dtype=torch.float64).expand(many, 1, -1)
    trees = DraftTree(
        torch.zeros(many, 1, dtype=torch.long), [1] * many, kind=Kind.INDEPENDENT, proposals=q
    )
    draws = KeyedDraws([stream_key(seed, 0) for seed in range(many)], [9] * many, CPU)
    found = Lenience(0.5)(trees, scored([[[0.2, 0.8]] * 2] * many, 1), draws)
    assert abs(float(found.lengths.double().mean()) - 2 / 3) < 0.03


def test_what_is_written_after_the_end_of_a_shorter_chain() -> None:
    """The target's own distribution there, whatever stands in the padding; before it what is
    written alone."""
    random = torch.Generator().manual_seed(1)
    p = torch.randn(2, 4, 5, generator=random, dtype=torch.float64).softmax(-1)
    q = torch.randn(2, 3, 5, generator=random, dtype=torch.float64).softmax(-1)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0]])
    both = DraftTree(tokens, [3, 1], kind=Kind.INDEPENDENT, proposals=q)
    one = DraftTree(tokens[1:, :1], [1], kind=Kind.INDEPENDENT, proposals=q[1:, :1])
    found = written_distributions(both, p, 0.5)
    assert found[1, 1:].equal(p[1, 1:])
    torch.testing.assert_close(found[1:, :2], written_distributions(one, p[1:, :2], 0.5))
