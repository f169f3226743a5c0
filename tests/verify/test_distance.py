"""Distance-based acceptance: near ids, and the minimum block."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approximate_rules import EVEN, greedy_chain
from foretoken import ForetokenError
from foretoken.protocols import Verifier
from foretoken.verify.distance import Distance


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        (Distance(epsilon=1), [1, 0, 2], ([1, 0, 0], 1)),
        (Distance(epsilon=2), [2, 0, 3], ([2, 0, 0], 1)),
        (Distance(epsilon=0, minimum_block=1), [3, 0], ([0], 0)),
        (Distance(epsilon=0, minimum_block=2), [3, 3], ([3, 0], 1)),
        (Distance(epsilon=0, minimum_block=3), [3, 0, 0, 3], ([3, 0, 0, 0], 1)),
        (Distance(epsilon=0, minimum_block=9), [3, 3], ([3, 3, 0], 2)),
    ],
    ids=str,
)
def test_distance_by_hand(
    rule: Verifier, draft: list[int], expected: tuple[list[int], int]
) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Distance(epsilon=-1), "at least 0"),
        (lambda: Distance(minimum_block=0), "at least 1"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()
