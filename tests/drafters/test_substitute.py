"""A copy of the target with fewer bits, on the target's cache."""

from __future__ import annotations

from typing import Any

import torch

from foretoken import LLM, SamplingParams
from foretoken.drafters.substitute import Substitute
from foretoken.models.cache import KVCache
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, logits_after, serve
from foretoken.testing.checks import PROMPTS
from foretoken.verify.speculative import Speculative


def test_a_copy_that_is_the_target_is_always_right(deep: Pair) -> None:
    """With nothing rounded every draft is accepted, greedy and sampled, in a batch: its passes read
    the cache that the target wrote, at the places where the text ends."""
    drafter = Substitute(deep.transformers, "q8", 3)
    whole = deep.target

    def bound(access: Any) -> None:
        Substitute.bind(drafter, access)
        drafter._lm.lm = whole

    drafter.bind = bound  # type: ignore[method-assign]
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, max_tokens=20, seed=1, ignore_eos=True)
        for output in serve(deep.target, drafter, Speculative(), PROMPTS[:3], params):
            assert 0 < output.stats.accepted == output.stats.drafted


@torch.inference_mode()
def test_logits_are_the_copys_over_the_targets_cache(deep: Pair) -> None:
    """After a text whose keys and values are the target's: of one more token and of two. The
    target's own are what they were."""
    target = ModelTarget(deep.target, 1, 64)
    drafter = Substitute(deep.transformers, "q8")
    target.bind(drafter)
    drafter.bind(target)
    sequence = Sequence.start([5, 9, 2, 7], SamplingParams())
    target.begin(sequence)
    target.prefill([sequence], 8)
    model: Any = drafter._lm
    found = [model.root_logits([sequence]), model.next_logits([sequence], torch.tensor([3]))]
    cache: KVCache = target.cache
    assert cache.lengths[cache.slot(sequence.id)] == 3
    for logits, ids in zip(found, ([5, 9, 2, 7], [5, 9, 2, 7, 3]), strict=True):
        own, whole = logits_after(model.lm, ids), logits_after(deep.target, ids)
        off = (logits[0, 0] - whole).abs().max()
        assert 0 < off <= 2 * (own - whole).abs().max()  # only the last tokens are the copy's
    assert [lm for lm in drafter.small_models] == [model.lm] and drafter.pass_per_token


def test_a_quantised_copy_drafts_for_a_model() -> None:
    """Most of what it drafts is accepted, and the text is plain decoding's."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    config = {"method": "substitute", "draft_backend": "q8"}
    plain = LLM("mini", device="cpu").generate(["The house", "A dog"], params)
    drafted = LLM("mini", device="cpu", speculative_config=config).generate(
        ["The house", "A dog"], params
    )
    for one, other in zip(plain, drafted, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert other.stats.accepted > 0.7 * other.stats.drafted > 0


def test_a_draft_that_ends_before_a_token_has_cost_its_pass() -> None:
    """So drafting isn't a pass for each drafted token, which is declared."""
    assert Substitute(num_assistant_tokens_schedule="confidence").pass_per_token
    assert not Substitute(num_assistant_tokens_schedule="fallback").pass_per_token
