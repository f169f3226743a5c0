"""Hydra and Hydra++: what heads read, and what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foretoken.drafters.hydra import Hydra, HydraHead, HydraHeads, PrefixStates
from foretoken.errors import ForetokenError
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate, packed, randomised


class HydraPlus(HydraHeads):
    """With the decoder layer over the states."""

    def __init__(self, facts: Facts, **shape: Any) -> None:
        super().__init__(facts, **{"prefix": {"heads": 2}, **shape})


CHAIN = ((0,), (0, 0), (0, 0, 0))


@pytest.mark.parametrize(
    ("heads_cls", "options"),
    [
        (HydraHeads, {"tree": CHAIN}),
        (HydraHeads, {"tree": "paper"}),
        (HydraPlus, {"tree": "paper"}),
        (HydraPlus, {"tree": CHAIN}),
    ],
)
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, heads_cls: Any, options: dict[str, Any]
) -> None:
    """Steps and accepted places, one by one, ends of texts and full budgets included."""
    heads = randomised(heads_cls(Facts.of(small.target), own_lm_heads=False), scale=0.03)
    check_estimate(Hydra(heads, **options), heads, small.target, records, TargetOnly())


def test_trees_that_can_and_cant_be_grown(small: Pair, records: Records) -> None:
    """A tree planned for rates of few counts is drafted; one without earlier siblings refused."""
    heads = randomised(HydraHeads(Facts.of(small.target), own_lm_heads=False), scale=0.03)
    heads.notes["rates"] = [[0.5, 0.0, 0.2], [0.1, 0.3]]
    planned = Hydra(heads, tree="planned", tree_nodes=6)
    check_estimate(planned, heads, small.target, records, TargetOnly())
    with pytest.raises(ForetokenError, match="but not all of its earlier siblings"):
        Hydra(heads, tree=[[1]]).paths(heads)


def test_hydra_heads_see_what_was_drafted(small: Pair, records: Records) -> None:
    """A lesson's states are the heads' own on the true tokens, each of which counts."""
    heads = randomised(HydraHeads(Facts.of(small.target), num_layers=2))
    lesson = FrozenTarget(small.target).lesson(packed(records), (-1,))
    states = heads.head_states(lesson, torch.tensor([[9, 5]]))
    for i, head in enumerate(heads.heads):
        near = lesson.embed(lesson.tokens[0, 6 : 7 + i])
        torch.testing.assert_close(states[0, 1, i], head(lesson.hidden[-1][0, 5], near))
        other = head(lesson.hidden[-1][0, 5], near + 1)
        assert not torch.allclose(states[0, 1, i], other)


def test_the_layer_before_hydras_heads(small: Pair, records: Records) -> None:
    """At first it changes nothing; its output counts, and each of its weights learns."""
    frozen, facts = FrozenTarget(small.target), Facts.of(small.target)
    lesson = frozen.lesson(packed(records), (-1,))
    fresh = HydraPlus(facts, own_lm_heads=False).double()
    places = torch.arange(lesson.tokens.shape[1])[None]
    logits = fresh.logits(fresh.head_states(lesson, places), lesson.head)
    torch.testing.assert_close(logits[:, :, 1], lesson.head(lesson.hidden[-1]))
    heads = randomised(fresh, scale=0.1)
    heads(lesson, Objective({"kl_div": 1.0})).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in heads.parameters())
    with_layer = heads.head_states(lesson, places)
    heads.prefix = None
    assert not torch.allclose(with_layer, heads.head_states(lesson, places))


def test_heads_start_as_the_target(small: Pair, records: Records) -> None:
    """Untrained heads say what the target says, with a head of their own or the target's."""
    frozen = FrozenTarget(small.target)
    lesson = frozen.lesson(packed(records), (-1,))
    places = torch.arange(lesson.tokens.shape[1])[None]
    for own in (True, False):
        heads = HydraHeads(Facts.of(small.target), own_lm_heads=own).double()
        heads.copy_from(frozen)
        logits = heads.logits(heads.head_states(lesson, places), frozen.head)
        torch.testing.assert_close(logits[:, :, 2], frozen.head(lesson.hidden[-1]))


@torch.inference_mode()
def test_rows_of_a_batch_draft_as_if_alone(small: Pair) -> None:
    """Each after its own root."""
    heads = randomised(HydraHeads(Facts.of(small.target), own_lm_heads=False))
    paths = ((0,), (1,), (0, 0), (1, 0))
    drafter = Hydra(heads, tree=paths)
    drafter.bind(ModelTarget(small.target, 2, 32))
    states = torch.randn(8, small.target.width, dtype=torch.float64)
    roots = torch.arange(8)
    all_ = drafter.build_tree(paths, states, roots, [9] * 8).tokens.tolist()
    for row, drafted in enumerate(all_):
        alone = drafter.build_tree(paths, states[row, None], roots[row, None], [9])
        assert alone.tokens.tolist() == [drafted]
    assert drafter.build_tree(paths, states, roots + 1, [9] * 8).tokens.tolist() != all_


def test_the_layer_before_the_heads_is_served(small: Pair) -> None:
    """It reads the whole prompt, and heads without it the last token's state alone."""
    for cls, last in ((HydraPlus, None), (HydraHeads, 1)):
        drafter = Hydra(randomised(cls(Facts.of(small.target), own_lm_heads=False)))
        drafter.bind(ModelTarget(small.target, 1, 32))
        assert isinstance(drafter._states, PrefixStates) is (cls is HydraPlus)
        assert drafter.wants.last == last


@torch.no_grad()
def test_a_learned_residual() -> None:
    """Of all that a head reads, in place of the state."""
    head = HydraHead(8, 1, 2, None, learned=True)
    for weight in head.parameters():
        weight.normal_()
    state, embeddings = torch.randn(8), torch.randn(2, 8)
    joined, [block] = torch.cat((state, *embeddings)), head.blocks
    assert head.skip is not None
    x = head.skip(joined) + F.silu(head.join(joined))
    torch.testing.assert_close(head(state, embeddings), x + F.silu(block(x)))
