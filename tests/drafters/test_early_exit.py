"""Early exit: the first layers draft."""

from __future__ import annotations

import pytest
import torch

from foretoken import SamplingParams
from foretoken.drafters.early_exit import EarlyExit
from foretoken.errors import ForetokenError
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, native, serve
from foretoken.testing.checks import PROMPTS
from foretoken.verify.speculative import Speculative


def test_a_layer_that_changes_nothing_after_it_drafts_right(deep: Pair) -> None:
    """Later layers without effect: the first layers' draft is the target's own text."""
    import copy

    model = copy.deepcopy(deep.transformers)
    with torch.no_grad():
        for layer in model.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    drafts = []
    for exit_layer in (2, 1):
        drafter = EarlyExit(exit_layer, num_speculative_tokens=4)
        [output] = serve(native(model), drafter, Speculative(), PROMPTS[:1], params)
        drafts.append(output.stats)
    assert drafts[0].accepted == drafts[0].drafted
    assert drafts[1].accepted < drafts[1].drafted


def test_settings_that_cannot_be(deep: Pair) -> None:
    """Options out of range are refused when the drafter is made or bound."""
    target = ModelTarget(deep.target, 1, 8)
    with pytest.raises(ForetokenError, match="exit_layer"):
        EarlyExit(4).bind(target)
