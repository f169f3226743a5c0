"""Speculative sampling: how much it accepts."""

from __future__ import annotations

import pytest
import torch

from foretoken.testing.rules import Shape, rule_distribution
from foretoken.verify.speculative import Speculative
from rule_tables import DRAWN, context_free


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_speculative_accepts_as_in_theory(gamma: int) -> None:
    """(1 - α^(γ+1)) / (1 - α) tokens a step on context-free distributions (Leviathan et al. 2023,
    Eq. 1)."""
    p, q = context_free(3, gamma, 20)
    alpha = torch.minimum(p, q)[:, 0].sum(-1)
    theory = sum(alpha**n for n in range(gamma + 1))
    tokens = rule_distribution(Speculative(), Shape.of(DRAWN, *range(gamma)), p, q).accepted + 1
    assert (tokens - theory).abs().max() < 1e-10
