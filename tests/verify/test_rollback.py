"""Rollback by cross-entropy: the threshold."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from approximate_rules import EVEN, greedy_chain
from foretoken import ForetokenError
from foretoken.protocols import Verifier
from foretoken.verify.rollback import Rollback


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        (Rollback(alpha=-math.log(0.2) + 1e-9), [1, 2, 3, 0], ([1, 2, 0], 2)),
        (Rollback(alpha=-math.log(0.2) - 1e-9), [1, 2, 3, 0], ([1, 0], 1)),
        (Rollback(alpha=0), [0, 0, 1], ([0, 0, 0], 0)),  # its own token passes, unlikely or not
    ],
    ids=str,
)
def test_rollback_by_hand(
    rule: Verifier, draft: list[int], expected: tuple[list[int], int]
) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rollback(alpha=-1), "at least 0"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()
