"""Optimal transport: its limit."""

from __future__ import annotations

import pytest

from foretoken.errors import ForetokenError
from foretoken.testing.rules import Shape, rule_distribution
from foretoken.verify.optimal_transport import OptimalTransport
from rule_tables import DRAWN, tables


def test_too_large_a_programme_is_refused() -> None:
    """The message names the linear programme's limit and what to use instead."""
    p, q = tables(17, 1, 1)
    with pytest.raises(ForetokenError, match="k_seq"):
        rule_distribution(OptimalTransport(), Shape.of(DRAWN, 0, 0, 0), p, q)
