"""Chains of a block: how long they may be."""

from __future__ import annotations

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.dflash import DFlash
from foretoken.drafters.dflash2 import DFlash2
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from lessons import packed
from modules import block_module, selected_module


@pytest.mark.parametrize("kind", [DFlash, DFlash2])
def test_no_longer_than_the_block(kind: type[DFlash] | type[DFlash2], small: Pair) -> None:
    """Its places, or fewer; more are refused, and so is another method's module."""
    mine, other = block_module(small), selected_module(small)
    module = mine if kind is DFlash else other
    for given, most in ((None, 4), (3, 3)):
        drafter = kind(module, num_speculative_tokens=given)
        drafter.bind(ModelTarget(small.target, 1, 32))
        assert drafter.nodes == most
    with pytest.raises(ForetokenError, match="the checkpoint predicts 4 places"):
        kind(module, num_speculative_tokens=5).bind(ModelTarget(small.target, 1, 32))
    if kind is DFlash2:
        with pytest.raises(ForetokenError, match="trained for its target; name"):
            kind(mine)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_estimate_is_as_long_as_the_draft(
    small: Pair, records: Records, temperature: float
) -> None:
    module = block_module(small)
    frozen = FrozenTarget(small.target, temperature=temperature)
    lesson = frozen.lesson(packed(records), module.hidden)
    found = DFlash(module, num_speculative_tokens=2).acceptance(module, lesson)
    assert found.shape == (*lesson.tokens.shape, 2)
