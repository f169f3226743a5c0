"""P-EAGLE: what is estimated is served, what masks see, and that every weight learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.peagle import PEagle, PEagleModule
from foretoken.testing import Pair
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.verify.speculative import Speculative
from lessons import check_estimate, estimated, packed, seeded, taught


def module_of(pair: Pair, records: Records, **shape: Any) -> PEagleModule:
    """Its head knows the text's likeliest tokens and begins as the target's."""
    module: PEagleModule = seeded(PEagleModule, pair, num_layers=2, depths=3, **shape)
    module.set_token_counts(records.counts(23))
    module.copy_from(FrozenTarget(pair.target))
    return module


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("own", [True, False])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, places: int, own: bool
) -> None:
    """Steps and accepted places, one by one, ends of texts and full budgets included."""
    module = module_of(small, records, own_embedding=own)
    drafter = PEagle(module, num_speculative_tokens=places)
    check_estimate(drafter, module, small.target, records, Speculative())


def test_every_weight_learns(small: Pair, records: Records) -> None:
    """The mask's features and the embedding among them; of a loss at places of real text."""
    module = module_of(small, records, draft_vocab_size=9)
    lesson = FrozenTarget(small.target).lesson(packed(records), module.hidden)
    torch.manual_seed(0)
    loss = module(lesson, Objective({"kl_div": 1.0}))
    loss.backward()
    assert float(loss.detach()) > 0
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_it_learns(small: Pair, records: Records) -> None:
    """From the target's own texts, along which it is then accepted further."""
    module, rows = module_of(small, records), packed(records)
    drafter = PEagle(module, num_speculative_tokens=3)
    before = estimated(drafter, module, small.target, records)
    taught(module, small.target, lambda step: rows, Objective({"kl_div": 1.0}), steps=30)
    after = estimated(drafter, module, small.target, records)
    assert after.acceptance_length > 1.2 * before.acceptance_length


def test_a_place_does_not_depend_on_how_many_follow(small: Pair, records: Records) -> None:
    """Nor on other blocks of its row; masks see those before them alone."""
    module = module_of(small, records)
    lesson = FrozenTarget(small.target).lesson(packed(records), module.hidden)
    with torch.no_grad():
        many = module.places(lesson, torch.tensor([[4, 9, 30], [2, 5, 40]]), 5)
        few = module.places(lesson, torch.tensor([[9], [5]]), 2)
    torch.testing.assert_close(few[:, 0], many[:, 1, :2])
    assert not torch.allclose(many[:, :, 1], many[:, :, 2])


def test_lengths_have_a_range() -> None:
    """More places than the cache has room for are refused, and a model is needed."""
    with pytest.raises(ForetokenError, match="num_speculative_tokens is 513"):
        PEagle(num_speculative_tokens=513)
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        PEagle()


@pytest.mark.parametrize("shape", [{"depths": 1}, {"mask_token_id": 23}, {"mask_token_id": -1}])
def test_shapes_that_make_no_sense(small: Pair, shape: dict[str, int]) -> None:
    """Masks are tokens, and at least one of them predicts."""
    with pytest.raises(ValueError, match="mask_token_id is"):
        PEagleModule(Facts.of(small.target), **shape)
