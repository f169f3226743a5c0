"""What is believed of drafters that have verified nothing."""

from __future__ import annotations

from foretoken.config import auto_parts
from foretoken.control.priors import _KNOWN, SIZES, UNKNOWN, prior_of
from foretoken.methods import METHODS


def test_every_size_has_a_rate() -> None:
    """And longer copies are believed more."""
    sampled = [prior.sampled for prior in _KNOWN.values() if prior.sampled]
    for prior in (*_KNOWN.values(), *sampled, UNKNOWN):
        assert len(prior.first) == len(SIZES) + 1
        assert list(prior.first) == sorted(prior.first)
        assert all(0 < rate < 1 for rate in prior.first) and 0 <= prior.deeper < 1
        assert 0 < prior.again <= 1


def test_names_are_methods() -> None:
    """Those of plain `auto` whose rates were recorded; others start as unknown."""
    assert set(_KNOWN) <= {*METHODS} & {*auto_parts("auto", ["model"])}
    assert prior_of("mine") is UNKNOWN
