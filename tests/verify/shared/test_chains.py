"""Chains: the form without a loop keeps the distribution, as the loop over a tree does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.draws import GreedyDraws, KeyedDraws
from foretoken.protocols import Scores, Verifier
from foretoken.testing.rules import Shape, rule_distribution
from foretoken.tree import DraftTree, Kind, chains
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


ONE_KIND = [(kind,) * 3 for kind in TREE_KINDS]


@pytest.mark.parametrize(
    ("rule", "kinds"),
    [
        (rule, kinds)
        for rule in (MultiCandidate(), KSeq())
        for kinds in (*ONE_KIND, (CHOSEN, DRAWN, AUX), (DRAWN, AUX, REST), (DRAWN, AUX, DRAWN))
        if rule.kinds >= {*kinds}
    ],
)
def test_rules_that_are_one_on_chains(rule: Verifier, kinds: tuple[Kind, ...]) -> None:
    """On ragged chains of every kind that they take: the very path, lengths and token of
    speculative sampling, whoever draws."""
    p, q = tables(4, 0, 50)
    probs, proposals = p[:, 0].view(-1, 1, 4).expand(-1, 4, -1), q.expand(-1, 3, -1)
    random = torch.Generator().manual_seed(0)
    drawn = torch.stack([torch.multinomial(q[:, 0], 1, generator=random) for _ in range(3)], 1)
    for mixed in (False, len({*kinds}) == 1):
        trees = DraftTree(
            drawn[..., 0],
            [row % 4 for row in range(50)],
            kinds=None if mixed else torch.tensor(kinds, dtype=torch.int8).expand(50, -1),
            kind=kinds[0],
            proposals=None if {*kinds} == {CHOSEN} else proposals,
        )
        own = KeyedDraws(list(range(50)), [9] * 50, torch.device("cpu"))
        for draws in (own, GreedyDraws()):
            scores = Scores(probs.log(), probs.clone(), probs[..., 0] < 0)
            found, expected = (each(trees, scores, draws) for each in (rule, Speculative()))
            assert found.path.equal(expected.path) and found.token.equal(expected.token)
            assert found.lengths.equal(expected.lengths)
        assert {0, 1} <= {*expected.lengths.tolist()}


class Refusing(KeyedDraws):
    """As rounding would once in a while: what is certain fails its test."""

    def accept(self, probability: torch.Tensor, tests: torch.Tensor | None = None) -> torch.Tensor:
        return probability > 1


@pytest.mark.parametrize("rule", [Speculative(), Block()])
def test_a_rejection_that_leaves_nothing(rule: Verifier) -> None:
    """The token comes from p itself, never one of probability 0; a row that drafted nothing has
    its own p."""
    device = torch.device("cpu")
    p = torch.zeros(2, 2, 4)
    p[0, :, 2] = p[1, :, 1] = 1
    drafts = chains([[2], []], device)
    trees = replace(drafts, kind=Kind.INDEPENDENT, proposals=p[:, :1])
    scores = Scores(p.log(), p, torch.zeros(2, 2, dtype=torch.bool))
    verdict = rule(trees, scores, Refusing([1, 2], [5, 5], device))
    assert verdict.lengths.tolist() == [0, 0] and verdict.token.tolist() == [2, 1]
