"""Block verification: how much it accepts, next to token by token."""

from __future__ import annotations

import pytest
import torch

from foretoken.testing.rules import Shape, rule_distribution
from foretoken.verify.block import Block
from foretoken.verify.speculative import Speculative
from foretoken.verify.traversal import Traversal
from rule_tables import CHAINS, DRAWN, tables


@pytest.mark.parametrize(("parents", "vocab"), CHAINS[:4])
def test_block_is_never_worse(parents: tuple[int, ...], vocab: int) -> None:
    """At least token verification's acceptance on every pair, more on some, equal for one token."""
    p, q = tables(vocab, len(parents))
    shape = Shape.of(DRAWN, *parents)
    gain = (
        rule_distribution(Block(), shape, p, q).accepted
        - rule_distribution(Speculative(), shape, p, q).accepted
    )
    assert gain.min() > -1e-12
    assert gain.max() < 1e-12 if len(parents) == 1 else gain.max() > 0.01


def test_block_on_the_papers_example() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two drafted: 10/9 by token, 11/9 by block (section 2)."""
    p = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64).expand(1, 7, -1).contiguous()
    shape = Shape.of(DRAWN, 0, 1)
    for rule, accepted in ((Speculative(), 10 / 9), (Block(), 11 / 9), (Traversal(), 11 / 9)):
        assert abs(float(rule_distribution(rule, shape, p, p.flip(-1)).accepted) - accepted) < 1e-12
