"""Trees of heads: what is drafted before any state is known, within budgets, and by rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.control.cost_model import DraftCost
from foretoken.drafters.hydra import Hydra, HydraHeads
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.draws import GreedyDraws
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.trainable.checkpoint import Facts
from foretoken.trees.grow import MEDUSA_63
from lessons import randomised

PATHS = ((0,), (1,), (0, 0))


def drafting(pair: Pair) -> tuple[ModelTarget, Medusa, Sequence]:
    """A drafter of two heads and a sequence that it has begun."""
    heads = MedusaHeads(Facts.of(pair.target), num_heads=2, own_lm_heads=False)
    drafter = Medusa(randomised(heads, scale=0.03), tree=PATHS)
    target = ModelTarget(pair.target, 1, 64)
    target.bind(drafter)
    sequence = Sequence.start([5, 9, 2], SamplingParams(temperature=0))
    target.begin(sequence)
    drafter.begin(sequence)
    return target, drafter, sequence


def test_nothing_is_drafted_before_the_prompt_is_read(pair: Pair) -> None:
    """Heads read the target's last state, which the first pass brings."""
    _, drafter, sequence = drafting(pair)
    assert drafter.draft([sequence], [9], GreedyDraws()).counts == [0]


@torch.inference_mode()
def test_the_tree_is_filled_by_rank(pair: Pair) -> None:
    """Siblings are the first head's likeliest tokens, their child the second head's likeliest."""
    _, drafter, _ = drafting(pair)
    state = torch.randn(1, pair.target.width, dtype=pair.target.dtype)
    tree = drafter.build_tree(PATHS, state, torch.tensor([2]), [9])
    logits = drafter._heads.logits(drafter._heads.states(state), pair.target.head)[0]  # [H, V]
    first, second = logits[0].topk(2).indices.tolist(), int(logits[1].argmax())
    assert tree.tokens.tolist() == [[*first, second]]
    assert tree.parent_slots.tolist() == [[0, 0, 1]]
    assert drafter.build_tree(PATHS, state, torch.tensor([2]), [2]).counts == [2]


def test_a_tree_needs_as_many_heads_as_it_is_deep(pair: Pair) -> None:
    """Deeper paths than there are heads are left out; a name that is no tree is refused."""
    heads = MedusaHeads(Facts.of(pair.target), num_heads=1, own_lm_heads=False)
    assert Medusa(heads, tree=PATHS).paths(heads) == ((0,), (1,))
    with pytest.raises(ForetokenError, match="tree"):
        Medusa(heads, tree="oak").paths(heads)


def test_the_papers_tree_bounds_the_planned_one(pair: Pair) -> None:
    """Its first nodes are drafted until one is planned; more than it has is refused."""
    heads = MedusaHeads(Facts.of(pair.target), own_lm_heads=False)
    assert Medusa(heads, tree_nodes=5).paths(heads) == MEDUSA_63[:5]
    assert Medusa(heads, tree="paper", tree_nodes=5).paths(heads) == MEDUSA_63[:5]
    assert Medusa(heads, tree="paper").paths(heads) == MEDUSA_63
    with pytest.raises(ForetokenError, match="tree_nodes is 64 and the paper's tree"):
        Medusa(heads, tree_nodes=64)
    with pytest.raises(ForetokenError, match="tree 'paper' is a part"):
        Medusa(heads, tree="paper", tree_nodes=64)
    with pytest.raises(ForetokenError, match="tree_nodes is 1 and tree lists its nodes itself"):
        Medusa(heads, tree=PATHS, tree_nodes=1)


def test_what_a_level_costs(pair: Pair) -> None:
    """Heads that read what was drafted run once for each level; others all run at once."""
    timed = DraftCost(call=3.0, level=1.0)
    for kind, heads, cost in (
        (Medusa, MedusaHeads, timed),
        (Hydra, HydraHeads, DraftCost(level=4.0)),
    ):
        drafter: Any = kind(heads(Facts.of(pair.target), own_lm_heads=False))
        assert drafter.draft_cost(timed) == cost
