"""Recursive rejection: what further siblings bring."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foretoken.testing.rules import Shape, rule_distribution
from foretoken.tree import Kind
from foretoken.verify.multi_candidate import MultiCandidate
from rule_tables import CHOSEN, DRAWN, REST, tables


@pytest.mark.parametrize("kind", [CHOSEN, DRAWN, REST])
def test_candidates_help(kind: Kind) -> None:
    """Each further sibling adds acceptance, or nothing."""
    p, q = tables(4, 1)
    found = [
        rule_distribution(MultiCandidate(), Shape.of(kind, *([0] * count)), p, q).accepted
        for count in (1, 2, 3)
    ]
    for fewer, more in pairwise(found):
        assert (more - fewer).min() > -1e-12 and (more - fewer).max() > 0.01
