"""Trees of independent draws with auxiliary nodes."""

from __future__ import annotations

import pytest

from foretoken.protocols import Verifier
from foretoken.testing.rules import Shape
from foretoken.verify.k_seq import KSeq
from foretoken.verify.optimal_transport import OptimalTransport
from rule_tables import AUX, DRAWN, off


@pytest.mark.parametrize("rule", [KSeq(), OptimalTransport()])
def test_shared_prefixes_with_auxiliary_nodes(rule: Verifier) -> None:
    """Auxiliary nodes are no candidates."""
    assert off(rule, Shape((0, 0, 0, 1, 2), (DRAWN, AUX, DRAWN, DRAWN, AUX)), 2) <= 1e-12
