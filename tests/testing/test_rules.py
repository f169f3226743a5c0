"""One step of a rule over tables, every outcome enumerated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretoken.testing.enumeration import EnumeratedDraws, Script
from foretoken.testing.rules import Shape, contexts, draft, own_distribution, rule_distribution
from foretoken.tree import Kind
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly


def tables(seed: int, tokens: int = 2, vocab: int = 3) -> Tensor:
    """[2, contexts, vocab] random distributions."""
    random = torch.Generator().manual_seed(seed)
    shape = (2, contexts(vocab, tokens), vocab)
    return torch.rand(shape, generator=random, dtype=torch.float64).softmax(-1)


def test_contexts_are_counted() -> None:
    """The empty one, those of one token, those of two."""
    assert contexts(3, 2) == 1 + 3 + 9


def test_a_shape_knows_its_depth_and_siblings() -> None:
    """Two children of the root, and a grandchild."""
    shape = Shape.of(Kind.CHOSEN, 0, 0, 1)
    assert shape.depth == 2 and shape.earlier(1) == [0] and shape.earlier(2) == []
    mixed = Shape((0, 0, 0), (Kind.CHOSEN, Kind.AUXILIARY, Kind.CHOSEN))
    assert mixed.earlier(2) == [0]  # the one between can't be accepted


def test_an_exact_rule_keeps_the_distribution() -> None:
    """Drawn chains under speculative sampling, chosen ones under the target's own sample."""
    target, proposal = tables(0), tables(1)
    expected = own_distribution(target, 2)
    torch.testing.assert_close(expected.sum(-1), torch.ones(2, dtype=torch.float64))
    for rule, kind in ((Speculative(), Kind.INDEPENDENT), (TargetOnly(), Kind.CHOSEN)):
        written = rule_distribution(rule, Shape.of(kind, 0), target, proposal)
        torch.testing.assert_close(written.distribution, expected, atol=1e-12, rtol=0)


def test_accepted_tokens_are_the_overlap() -> None:
    """Of one drawn token, speculative sampling accepts Σ min(p, q)."""
    target, proposal = tables(0, 1), tables(1, 1)
    written = rule_distribution(Speculative(), Shape.of(Kind.INDEPENDENT, 0), target, proposal)
    overlap = torch.minimum(target[:, 0], proposal[:, 0]).sum(-1)
    assert written.accepted.tolist() == pytest.approx(overlap.tolist())


def test_siblings_of_which_nothing_is_left() -> None:
    """The second one is any token, each as likely as the others: rules don't accept it."""
    script, proposal = Script([]), torch.zeros(1, contexts(3, 1), 3, dtype=torch.float64)
    proposal[..., 0] = 1.0
    shape = Shape.of(Kind.WITHOUT_REPLACEMENT, 0, 0)
    trees, _ = draft(shape, proposal, EnumeratedDraws([script]))
    assert trees.tokens.tolist() == [[0, 0]]
    assert script.others == [[1], [2]] and script.weight == pytest.approx(1 / 3)
