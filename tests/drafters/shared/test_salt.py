"""Requests that are kept apart: no drafter tells one of them what others wrote, nor the reverse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretoken import LLM, RequestOutput, SamplingParams
from foretoken.drafters.shared.salt import shares
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair

KEEPING: dict[str, dict[str, Any]] = {
    "suffix": {},
    "llma": {},
    "pld": {"max_cached_tokens": 1000},
    "token_recycling": {"tree": "paper"},
    "token_recycling+suffix": {},
}
ASKED = SamplingParams(temperature=0, max_tokens=30, return_drafts=True)
SALTS: list[str | None] = [None, "mine", "theirs"]


def test_who_shares() -> None:
    """Those without a salt."""
    texts = [Sequence.start([1], SamplingParams(cache_salt=salt)) for salt in SALTS]
    assert [shares(text) for text in texts] == [True, False, False]


def drafts(output: RequestOutput) -> list[list[int]]:
    """What each step drafted."""
    return [draft.tokens for sample in output.outputs for draft in sample.drafts or ()]


@pytest.mark.parametrize("method", KEEPING)
def test_drafts_are_those_of_a_request_that_is_alone(pair: Pair, method: str) -> None:
    """With a salt on either side, or the same one on both, the second of two equal requests is
    drafted for as if there had been no first, after it and beside it. Without salts it isn't."""

    def last(*calls: list[str | None]) -> RequestOutput:
        """Of calls one after another, each of equal requests with these salts."""
        config = {"method": method, **KEEPING[method]}
        with LLM(pair.target, speculative_config=config, eos_ids=()) as llm:
            for salts in calls:
                params = [replace(ASKED, cache_salt=salt) for salt in salts]
                outputs = llm.generate([[5, 9, 2, 5]] * len(salts), params)
        return outputs[-1]

    alone = last([None])
    for first in SALTS:
        for second in SALTS[:2]:
            after, beside = last([first], [second]), last([first, second])
            assert after.token_ids == beside.token_ids == alone.token_ids
            if first is None and second is None:
                assert drafts(after) != drafts(alone)
            else:
                assert drafts(after) == drafts(beside) == drafts(alone)
