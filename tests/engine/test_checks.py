"""What is checked before a request is queued. Pairings are in test_engine."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError, SamplingParams
from foretoken.engine.checks import check_request
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair
from foretoken.verify.target_only import TargetOnly


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ([], {}, "prompt is empty"),
        ([1] * 32, {}, "32 tokens and the context is 32"),
        ([97], {}, "outside the vocabulary of 97"),
        ([-1], {}, "outside the vocabulary of 97"),
        ([1], {"logprobs": 98}, "logprobs is 98 and the vocabulary has 97 tokens"),
        ([1], {"stop": "x"}, "need a tokenizer"),
        ([1], {"stop_token_ids": [97]}, "Token id 97"),
    ],
)
def test_requests_that_cant_be_served(
    pair: Pair, prompt: list[int], options: dict[str, Any], said: str
) -> None:
    """One sentence each."""
    target = ModelTarget(pair.target, 1, 32)
    with pytest.raises(ForetokenError, match=said):
        check_request(target, TargetOnly(), prompt, SamplingParams(**options))


def test_the_room_that_is_left(pair: Pair) -> None:
    """max_tokens, or what the context leaves."""
    target = ModelTarget(pair.target, 1, 32)
    for asked, room in ((None, 30), (7, 7), (99, 30)):
        params = SamplingParams(max_tokens=asked, logprobs=97)
        assert check_request(target, TargetOnly(), [1, 2], params) == room
