"""Counts of tokens and of drafts."""

from __future__ import annotations

import pytest

from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.serve.usage import acceptance, metrics


def test_the_histogram() -> None:
    stats = RequestStats()
    for accepted in (0, 2, 2, 3):
        stats.record(emitted=accepted + 1, drafted=3, accepted=accepted, depth=3)
    stats.record(emitted=1, drafted=0, accepted=0, depth=0)  # nothing was drafted
    told = acceptance(stats)
    assert told["acceptance_histogram"] == [1, 0, 2, 1]
    assert told["num_spec_steps"] == 4 and told["num_draft_tokens"] == 12
    assert told["mean_acceptance_length"] == 1 + 7 / 4 and told["num_spec_tokens"] == 3


def test_the_times_of_a_request() -> None:
    """Between five tokens there are four."""
    stats = RequestStats(queue_time=0.5, time_to_first_token=1.0, total_time=3.0)
    told = metrics([RequestOutput(1, None, [1], [CompletionOutput(0, token_ids=[7] * 5)], stats)])
    assert told is not None and told["queue_time_ms"] == 500
    assert (told["generation_time_ms"], told["mean_itl_ms"]) == (2000, 500)
    assert told["tokens_per_second"] == pytest.approx(5 / 3)
