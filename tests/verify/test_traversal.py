"""Traversal verification, compared with block verification and with recursive rejection."""

from __future__ import annotations

import pytest
import torch

from foretoken.draws import KeyedDraws
from foretoken.testing.rules import Shape, draft, rule_distribution
from foretoken.tree import Kind
from foretoken.verify import traversal
from foretoken.verify.block import Block
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.traversal import Traversal
from rule_tables import CHOSEN, CPU, DRAWN, REST, TREES, tables, verdict


def test_traversal_of_a_chain_is_block_verification() -> None:
    """Test for test: the same verdicts from the same numbers."""
    for kind in (DRAWN, CHOSEN):
        shape = Shape.of(kind, 0, 1, 2, 3)
        p, q = tables(5, 4, 40, 3)
        trees, place = draft(shape, q, KeyedDraws(list(range(40)), [3] * 40, CPU))
        probs = p[torch.arange(40)[:, None], place]
        for seed in range(20):
            seeds = list(range(1000 * seed, 1000 * seed + 40))
            ours = verdict(Traversal(), trees, probs, seeds)
            other = verdict(Block(), trees, probs, seeds)
            assert ours.lengths.equal(other.lengths) and ours.token.equal(other.token)


@pytest.mark.parametrize("kind", [DRAWN, REST])
@pytest.mark.parametrize(("parents", "vocab"), TREES)
def test_traversal_is_never_worse(kind: Kind, parents: tuple[int, ...], vocab: int) -> None:
    """At least the acceptance of top-down rejection on every pair, by the same tree."""
    shape = Shape.of(kind, *parents)
    p, q = tables(vocab, shape.depth)
    ours = rule_distribution(Traversal(), shape, p, q).accepted
    assert (ours - rule_distribution(MultiCandidate(), shape, p, q).accepted).min() > -1e-12


def test_a_level_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of large vocabularies: the same verdicts as with all of its slots at once."""
    shape = Shape.of(DRAWN, 0, 0, 1, 2, 2)
    p, q = tables(4, shape.depth, 40, 3)
    trees, place = draft(shape, q, KeyedDraws(list(range(40)), [3] * 40, CPU))
    probs, seeds = p[torch.arange(40)[:, None], place], list(range(40))
    whole = verdict(Traversal(), trees, probs, seeds)
    monkeypatch.setattr(traversal, "_AT_ONCE", 4 * 7)
    parts = verdict(Traversal(), trees, probs, seeds)
    assert len(whole.lengths.unique()) > 1
    assert parts.lengths.equal(whole.lengths) and parts.token.equal(whole.token)
    assert parts.path.equal(whole.path)
