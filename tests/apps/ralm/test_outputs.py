"""The rate of right guesses."""

from __future__ import annotations

from foretoken.apps.ralm.outputs import RalmStats


def test_the_match_rate() -> None:
    assert RalmStats().match_rate == 0
    assert RalmStats(matched=3, wrong=1).match_rate == 0.75
