"""Optimal transport: its limits."""

from __future__ import annotations

import pytest

from foretoken import LLM
from foretoken.errors import ForetokenError
from foretoken.testing import Drawn, tiny_pair
from foretoken.testing.rules import Shape, rule_distribution
from foretoken.verify.optimal_transport import OptimalTransport
from rule_tables import DRAWN, tables


def test_too_large_a_programme_is_refused() -> None:
    """The message names the linear programme's limit and what to use instead."""
    p, q = tables(17, 1, 1)
    with pytest.raises(ForetokenError, match="k_seq"):
        rule_distribution(OptimalTransport(), Shape.of(DRAWN, 0, 0, 0), p, q)


def test_a_vocabulary_that_is_too_large_for_one_draw() -> None:
    """It is refused at load, and not request by request; one token less is served."""
    for size in (4096, 4097):
        pair = tiny_pair(size)
        config = {"method": Drawn(pair.draft, (1,)), "verifier": "optimal_transport"}
        if size == 4096:
            assert LLM(pair.target, speculative_config=config)
            continue
        with pytest.raises(ForetokenError, match="at most 4096 tokens and the target's has 4097"):
            LLM(pair.target, speculative_config=config)
