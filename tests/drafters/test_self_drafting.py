"""All drafters that run a part of the target: the text is the target's."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from foretoken import LLM
from foretoken.config import build
from foretoken.drafters.draft_verify import DraftVerify
from foretoken.drafters.early_exit import EarlyExit
from foretoken.drafters.pruned import Pruned
from foretoken.drafters.substitute import Substitute
from foretoken.drafters.swift import Swift
from foretoken.errors import ForetokenError
from foretoken.models.hf.adapter import HFModel
from foretoken.models.native.build import build_native
from foretoken.protocols import Drafter
from foretoken.testing import check_greedy, check_independence, check_seeded
from foretoken.testing.checks import PROMPTS, greedy_reference
from foretoken.testing.models import Pair
from foretoken.verify.target_only import TargetOnly
from partial_target import GREEDY

TOKENS = 40


@pytest.fixture(scope="module")
def expected(deep: Pair) -> list[list[int]]:
    """What the target writes greedily."""
    return [greedy_reference(deep.target, prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "drafter",
    [
        DraftVerify((2, 5)),
        DraftVerify(),
        EarlyExit(2),
        Swift(context_window=4),
        Pruned(),
        Substitute(),
    ],
    ids=lambda drafter: type(drafter).__name__,
)
def test_text_is_the_targets_and_drafts_are_accepted(
    deep: Pair, expected: list[list[int]], drafter: Drafter
) -> None:
    """In batches, greedy and sampled, on four layers; and more than one token comes of a pass."""
    model = deep.transformers
    weights = model.state_dict().__getitem__
    own = build_native(
        model.config, weights, torch.float64, torch.device("cpu"), "plain", source=model
    )
    target = dataclasses.replace(deep, target=own)
    rule = build({"method": drafter}).verifier

    def make(_: Pair) -> Drafter:
        return dataclasses.replace(drafter)  # type: ignore[type-var]

    for slots in (1, 3):
        outputs = check_greedy(
            make, rule, target, slots=slots, prompts=PROMPTS, tokens=TOKENS, expected=expected
        )
    assert sum(output.stats.accepted for output in outputs) > 10
    check_independence(make, rule, target)
    if isinstance(rule, TargetOnly):
        check_seeded(make, rule, target, slots=3)


def test_the_adapter_is_refused(deep: Pair) -> None:
    """Level e is the native model's alone; a pruned copy needs level a and is served anywhere."""
    target = HFModel(deep.transformers)
    for name in ("draft_verify", "early_exit", "swift", "substitute", "ppd", "speed"):
        with pytest.raises(ForetokenError, match="model_impl='native'"):
            LLM(target, speculative_config={"method": name})
    assert LLM(target, speculative_config={"method": "pruned"}).generate([[1, 2]], GREEDY)
