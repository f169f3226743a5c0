"""The residual after siblings of several kinds, and mistakes in it."""

from __future__ import annotations

import pytest
import torch

from foretoken.draws import KeyedDraws
from foretoken.protocols import Scores, Verifier
from foretoken.testing.rules import Shape
from foretoken.tree import DraftTree, Kind
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.shared.residual import Residual, final_residual, offers
from foretoken.verify.traversal import Traversal
from rule_tables import MIXED, off


@pytest.mark.parametrize("shape", MIXED)
@pytest.mark.parametrize("rule", [MultiCandidate(), Traversal()])
def test_siblings_of_several_kinds(rule: Verifier, shape: Shape) -> None:
    """Chosen, drawn and auxiliary siblings under one parent."""
    assert off(rule, shape, 3) <= 1e-12


def test_the_residual_of_one_drawn_token() -> None:
    """max(p - q, 0) is owed with its sum as the probability, and the chance is min(1, p / q)."""
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64)
    trees = DraftTree(torch.tensor([[1]]), [1], kind=Kind.INDEPENDENT, proposals=q[:, None])
    zero = torch.zeros(1, dtype=torch.long)
    residual = Residual(p.clone())
    [offer] = offers(trees, zero, zero, 1)
    assert residual.chance(offer).tolist() == pytest.approx([0.3 / 0.7])
    residual.reject(offer)
    assert residual.distribution[0].tolist() == pytest.approx([0.3, 0.0, 0.1])
    assert float(residual.mass) == pytest.approx(0.4) and float(residual.owed) == pytest.approx(1.0)
    assert final_residual(trees, p[:, None].expand(-1, 2, -1), zero)[0].tolist() == pytest.approx(
        [0.3, 0.0, 0.1]
    )


def test_a_node_that_owes_less_pays_less() -> None:
    """With owed = 1/2 the drawn token's chance halves, and S / (1 - owed + S) is owed after it."""
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64)
    trees = DraftTree(torch.tensor([[1]]), [1], kind=Kind.INDEPENDENT, proposals=q[:, None])
    zero = torch.zeros(1, dtype=torch.long)
    residual = Residual(p.clone(), torch.tensor([0.5], dtype=torch.float64))
    [offer] = offers(trees, zero, zero, 1)
    assert residual.chance(offer).tolist() == pytest.approx([0.15 / 0.7])
    residual.reject(offer)
    excess = 0.05  # max(p / 2 - q, 0) = 0.05, 0, 0
    assert float(residual.owed) == pytest.approx(excess / (0.5 + excess))


class Refusing(KeyedDraws):
    """As rounding would once in a while: what is certain fails its test."""

    def accept(self, probability: torch.Tensor, tests: torch.Tensor | None = None) -> torch.Tensor:
        return probability > 1


@pytest.mark.parametrize("rule", [MultiCandidate(), Traversal()])
def test_siblings_whose_rejection_leaves_nothing(rule: Verifier) -> None:
    """The token comes from p itself, never one of probability 0."""
    device = torch.device("cpu")
    p = torch.zeros(1, 3, 4)
    p[..., 1] = 1
    trees = DraftTree(
        torch.tensor([[1, 1]]),
        [2],
        torch.tensor([[0, 0]]),
        kind=Kind.INDEPENDENT,
        proposals=p[:, :1],
        rows=torch.tensor([[0, 0]]),
    )
    scores = Scores(p.log(), p, torch.zeros(1, 3, dtype=torch.bool))
    verdict = rule(trees, scores, Refusing([1], [5], device))
    assert verdict.lengths.tolist() == [0] and verdict.token.tolist() == [1]
