"""K-SEQ: its share of the optimum, and its γ."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from foretoken.testing.rules import Shape, rule_distribution
from foretoken.verify import k_seq
from foretoken.verify.k_seq import KSeq
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.optimal_transport import OptimalTransport
from rule_tables import DRAWN, PAIRS, tables


@pytest.mark.parametrize(("count", "vocab"), [(2, 3), (2, 5), (3, 3), (4, 2)])
def test_k_seq_against_the_optimum(count: int, vocab: int) -> None:
    """Between 1 - 1/e of the optimal transport and all of it; that is above recursive rejection."""
    p, q = tables(vocab, 1, 50)
    shape = Shape.of(DRAWN, *([0] * count))
    rules = (OptimalTransport(), KSeq(), MultiCandidate())
    best, ours, simple = (rule_distribution(rule, shape, p, q).accepted for rule in rules)
    assert (ours - best).max() < 1e-9 and (ours - (1 - 1 / torch.e) * best).min() > -1e-9
    assert (simple - best).max() < 1e-9 and (best - simple).max() > 0.001


def test_gamma_is_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The γ of K-SEQ is the root that a root finder gives, from above."""
    monkeypatch.setattr(k_seq, "_HALVINGS", 40)
    p, q = (t[:, 0] for t in tables(5, 0))
    for count in (2, 5, 9):
        found = k_seq._least_gamma(p, q, torch.full((PAIRS,), float(count)).double())
        for one, other, gamma in zip(p, q, found, strict=True):

            def excess(g: float, one: Tensor = one, other: Tensor = other, k: int = count) -> float:
                beta = float(torch.minimum(other, one / g).sum().clamp(max=1))
                return 1 - (1 - beta) ** k - g * beta

            ends = excess(1.0), excess(float(count))
            root = brentq(excess, 1.0, count) if ends[0] > 1e-12 > -1e-12 > ends[1] else None
            assert excess(float(gamma)) < 1e-9
            assert root is None or abs(float(gamma) - root) < 1e-6
