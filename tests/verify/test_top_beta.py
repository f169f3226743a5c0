"""Top-β: what its rank and its tolerance let pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from approximate_rules import EVEN, greedy_chain
from foretoken import ForetokenError
from foretoken.protocols import Verifier
from foretoken.verify.top_beta import TopBeta


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        # The second, third and fourth choice of the target are 1, 2 and 3.
        (TopBeta(beta=1, tau=9), [0, 1, 0], ([0, 0], 0)),
        (TopBeta(beta=2, tau=9), [1, 2, 0], ([1, 0], 1)),
        (TopBeta(beta=3, tau=9), [1, 2, 3], ([1, 2, 0], 2)),
        (TopBeta(beta=4, tau=9), [1, 2, 3], ([1, 2, 3, 0], 3)),
        (TopBeta(beta=4, tau=math.log(0.4 / 0.3) + 1e-9), [1, 0, 2], ([1, 0, 0], 1)),
        (TopBeta(beta=4, tau=math.log(0.4 / 0.3) - 1e-9), [1, 0, 2], ([0], 0)),
    ],
    ids=str,
)
def test_top_beta_by_hand(
    rule: Verifier, draft: list[int], expected: tuple[list[int], int]
) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopBeta(beta=0), "beta must be at least 1"),
        (lambda: TopBeta(tau=-1), "tau at least 0"),
        (lambda: TopBeta(tau=math.nan), "tau at least 0"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()
