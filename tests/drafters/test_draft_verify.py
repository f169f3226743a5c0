"""Draft & Verify: drawn drafts and their rule."""

from __future__ import annotations

import pytest

from foretoken.config import build
from foretoken.drafters.draft_verify import DraftVerify
from foretoken.errors import ForetokenError
from foretoken.models.target import ModelTarget
from foretoken.testing.checks import PROMPTS, SAMPLED, serve
from foretoken.testing.models import Pair
from foretoken.verify.speculative import Speculative


def test_rule_of_drawn_drafts(deep: Pair) -> None:
    """Draft & Verify draws when it samples, and is verified by speculative sampling."""
    built = build({"method": "draft_verify", "skip": [2, 5]})
    drafter, rule = built.drafter, built.verifier
    assert isinstance(rule, Speculative)
    outputs = serve(deep.target, drafter, rule, PROMPTS, SAMPLED, slots=4)
    assert sum(output.stats.accepted for output in outputs)


def test_settings_that_cannot_be(deep: Pair) -> None:
    """Options out of range are refused when the drafter is made or bound."""
    target = ModelTarget(deep.target, 1, 8)
    with pytest.raises(ForetokenError, match="sub-layers"):
        DraftVerify((1, 8)).bind(target)
    with pytest.raises(ForetokenError, match="sub-layers -1 to 2"):
        DraftVerify((-1, 2)).bind(target)
