"""GliDe: what is estimated is served."""

from __future__ import annotations

import pytest

from foretoken.drafters.glide import Glide
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.cross_attention import CrossAttentionModule
from foretoken.verify.speculative import Speculative
from lessons import check_estimate, check_expectation
from modules import learned_glimpse_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> CrossAttentionModule:
    """Trained for a few steps, on the very texts."""
    return learned_glimpse_module(small, records)


def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: CrossAttentionModule
) -> None:
    """Steps and accepted places of chains."""
    total = check_estimate(Glide(learned), learned, small.target, records, Speculative())
    assert total.accepted[1] > 0


def test_the_expectation_of_drawn_chains(small: Pair, learned: CrossAttentionModule) -> None:
    check_expectation(Glide(learned), learned, small.target, Speculative())
