"""Chains: the form without a loop keeps the distribution, as the loop over a tree does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.draws import KeyedDraws
from foretoken.protocols import Scores, Verifier
from foretoken.testing.rules import Shape, rule_distribution
from foretoken.tree import Kind, chains
from foretoken.verify.block import Block
from foretoken.verify.k_seq import KSeq
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.speculative import Speculative
from foretoken.verify.traversal import Traversal
from rule_tables import AUX, CHOSEN, DRAWN, REST, TREE_KINDS, off, tables


@pytest.mark.parametrize(
    "kinds", [(CHOSEN, DRAWN, CHOSEN), (DRAWN, AUX, DRAWN), (REST, CHOSEN, AUX)]
)
@pytest.mark.parametrize("rule", [Block(), MultiCandidate(), Traversal()])
def test_chains_of_several_kinds(rule: Verifier, kinds: tuple[Kind, ...]) -> None:
    """A chain that is partly chosen, and one that an auxiliary node ends."""
    assert off(rule, Shape((0, 1, 2), kinds), 3) <= 1e-12


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(KSeq(), DRAWN), *((r, k) for r in (MultiCandidate(), Traversal()) for k in TREE_KINDS)],
)
def test_chains_agree_with_the_way_of_trees(rule: Verifier, kind: Kind) -> None:
    """With an auxiliary sibling, a path goes through the rule's loop instead of the chain form."""
    p, q = tables(3, 3)
    short, loop = (
        rule_distribution(rule, shape, p, q)
        for shape in (Shape.of(kind, 0, 1, 2), Shape((0, 1, 2, 0), (kind, kind, kind, AUX)))
    )
    assert (short.distribution - loop.distribution).abs().max() <= 1e-12
    assert (short.accepted - loop.accepted).abs().max() <= 1e-12


@pytest.mark.parametrize("kind", [CHOSEN, DRAWN, REST])
@pytest.mark.parametrize("rule", [MultiCandidate(), KSeq()])
def test_one_function_on_chains(rule: Verifier, kind: Kind) -> None:
    """What these rules make of ragged chains is Speculative's verdict, draw for draw; so drafters
    that make chains alone are tried with one of the three."""
    if kind not in rule.kinds or kind not in Speculative().kinds:
        pytest.skip("it isn't taken")
    device, random = torch.device("cpu"), torch.Generator().manual_seed(3)
    rows, vocab = 200, 5
    texts = [torch.randint(vocab, (row % 4,), generator=random).tolist() for row in range(rows)]
    p, q = (
        torch.rand(rows, slots, vocab, generator=random, dtype=torch.float64) for slots in (4, 3)
    )
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    trees = replace(chains(texts, device), kind=kind, proposals=None if kind == CHOSEN else q)
    scores = Scores(p.log(), p, torch.zeros(rows, 4, dtype=torch.bool))
    draws = KeyedDraws(list(range(rows)), [7] * rows, device)
    mine, theirs = (one(trees, scores, draws) for one in (rule, Speculative()))
    for name in ("path", "lengths", "token"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))
    assert {*mine.lengths.tolist()} == {0, 1, 2, 3}


class Refusing(KeyedDraws):
    """As rounding would once in a while: what is certain fails its test."""

    def accept(self, probability: torch.Tensor, tests: torch.Tensor | None = None) -> torch.Tensor:
        return probability > 1


@pytest.mark.parametrize("rule", [Speculative(), Block()])
def test_a_rejection_that_leaves_nothing(rule: Verifier) -> None:
    """The token comes from p itself, never one of probability 0; a row that drafted nothing has
    its own p."""
    device = torch.device("cpu")
    trees, p = chains([[2], []], device), torch.zeros(2, 2, 4)
    p[0, :, 2] = p[1, :, 1] = 1
    scores = Scores(p.log(), p, torch.zeros(2, 2, dtype=torch.bool))
    verdict = rule(trees, scores, Refusing([1, 2], [5, 5], device))
    assert verdict.lengths.tolist() == [0, 0] and verdict.token.tolist() == [2, 1]
