"""A pruned copy of the target as its draft model."""

from __future__ import annotations

import pytest

from foretoken import SamplingParams
from foretoken.drafters.pruned import Pruned
from foretoken.errors import ForetokenError
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, serve
from foretoken.testing.checks import PROMPTS
from foretoken.verify.speculative import Speculative


def test_nothing_pruned_is_always_right(deep: Pair) -> None:
    """With all heads and columns kept every draft is accepted; what it costs is declared."""
    drafter = Pruned(deep.transformers, 1.0, 1.0)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    [output] = serve(deep.target, drafter, Speculative(), PROMPTS[:1], params)
    assert 0 < output.stats.accepted == output.stats.drafted
    assert drafter.pass_per_token
    assert [model.parameters for model in drafter.small_models] == [deep.target.parameters]


def test_a_row_that_ends_among_longer_drafts(deep: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """It follows them through a whole draft, for which there are cells after its context."""
    drafter = Pruned(deep.transformers, 1.0, 1.0, num_speculative_tokens=100)
    length = deep.target.max_length
    params = [SamplingParams(temperature=0, max_tokens=most, ignore_eos=True) for most in (3, 120)]
    outputs = serve(deep.target, drafter, Speculative(), [[5] * (length - 3), [7, 3]], params)
    assert [len(output.token_ids) for output in outputs] == [3, 120]
    assert "start again" not in caplog.text


def test_settings_that_cannot_be(deep: Pair) -> None:
    """Options out of range are refused when the drafter is made or bound."""
    target = ModelTarget(deep.target, 1, 8)
    with pytest.raises(ForetokenError, match="where the target's weights"):
        Pruned().bind(target)
    with pytest.raises(ForetokenError):
        Pruned(kept_columns=0.0)


def test_a_draft_that_ends_before_a_token_has_cost_its_pass() -> None:
    """So drafting isn't a pass for each drafted token, which is declared."""
    assert Pruned(num_assistant_tokens_schedule="confidence").pass_per_token
    assert not Pruned(num_assistant_tokens_schedule="fallback").pass_per_token
