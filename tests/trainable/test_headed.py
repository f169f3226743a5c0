"""Drafters that predict with the target's head, beside those with one of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.peagle import PEagleModule
from foretoken.testing import Pair, serve
from foretoken.testing.checks import texts
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.trainable.headed import head_size
from foretoken.trainable.losses import Objective
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, PROMPTS, packed, seeded

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "eagle3": (Eagle3Module, {"unroll": 2}),
    "peagle": (PEagleModule, {"num_layers": 1, "depths": 3, "blocks": 8}),
    "dflash": (BlockModule, {"num_layers": 1, "block_size": 4, "anchors": 8}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_targets_head(kind: str, small: Pair, records: Records) -> None:
    """It is no weight of the drafter's, and all of its tokens are drafted and learned."""
    cls, shape = KINDS[kind]
    module = seeded(cls, small, draft_vocab_size=None, **shape)
    frozen = FrozenTarget(small.target)
    module.set_token_counts(records.counts(23))
    module.copy_from(frozen)
    assert not {"lm_head.weight", "d2t", "t2d"} & set(module.state_dict())
    states = torch.randn(2, 3, 32).double()
    torch.testing.assert_close(module.head_logits(states, frozen.head), frozen.head(states))
    lesson = frozen.lesson(packed(records), module.hidden)
    objective = Objective({"kl_div": 1.0})
    assert module.own_objective(objective) is objective
    module(lesson, objective).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_learning_all_tokens_is_learning_with_the_targets_head(
    kind: str, small: Pair, records: Records
) -> None:
    """A head of its own over the whole vocabulary begins as the target's: the losses are alike."""
    cls, shape = KINDS[kind]
    frozen, losses = FrozenTarget(small.target), []
    for size in (None, 1000):
        module = seeded(cls, small, draft_vocab_size=None, **shape)
        if size is not None:
            whole = cls(module.facts, draft_vocab_size=size, **shape).double().eval()
            assert whole.shape["draft_vocab_size"] == 23
            whole.load_state_dict(module.state_dict(), strict=False)
            module = whole
        module.set_token_counts(records.counts(23))
        module.copy_from(frozen)
        torch.manual_seed(0)
        lesson = frozen.lesson(packed(records), module.hidden)
        losses.append(float(module(lesson, Objective({"kl_div": 1.0})).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_some_tokens_begins_as_the_targets(kind: str, small: Pair) -> None:
    """With the rows of its own tokens, here the last ones."""
    cls, shape = KINDS[kind]
    module = seeded(cls, small, draft_vocab_size=6, **shape)
    module.set_token_counts(torch.arange(23))
    module.copy_from(FrozenTarget(small.target))
    states = torch.randn(4, 32).double()
    assert module.ids.tolist() == [*range(17, 23)]
    torch.testing.assert_close(module.lm_head(states), small.target.head(states)[:, 17:])


@pytest.mark.parametrize("kind", KINDS)
def test_it_serves(kind: str, small: Pair, tmp_path: Any) -> None:
    """From a file; greedy texts are plain decoding's, and drafts have tokens of any number."""
    cls, shape = KINDS[kind]
    module = seeded(cls, small, draft_vocab_size=None, **shape)
    module.save(tmp_path, {})
    built = build({"method": kind, "model": str(tmp_path)})
    found = serve(small.target, built.drafter, built.verifier, PROMPTS, GREEDY)
    plain = serve(small.target, Nothing(), TargetOnly(), PROMPTS, GREEDY)
    assert texts(found) == texts(plain)


def test_no_head_is_larger_than_the_vocabulary() -> None:
    assert [head_size(asked, 23) for asked in (None, 9, 23, 24)] == [None, 9, 23, 23]
