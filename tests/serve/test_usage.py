"""Counts of tokens and of drafts."""

from __future__ import annotations

from foretoken.engine.stats import RequestStats
from foretoken.serve.usage import acceptance


def test_the_histogram() -> None:
    stats = RequestStats()
    for accepted in (0, 2, 2, 3):
        stats.record(emitted=accepted + 1, drafted=3, accepted=accepted, depth=3)
    stats.record(emitted=1, drafted=0, accepted=0, depth=0)  # nothing was drafted
    told = acceptance(stats)
    assert told["acceptance_histogram"] == [1, 0, 2, 1]
    assert told["num_spec_steps"] == 4 and told["num_draft_tokens"] == 12
    assert told["mean_acceptance_length"] == 1 + 7 / 4 and told["num_spec_tokens"] == 3
