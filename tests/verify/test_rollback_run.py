"""Rollback by a run of mismatches: the length of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approximate_rules import EVEN, greedy_chain
from foretoken import ForetokenError
from foretoken.protocols import Verifier
from foretoken.verify.rollback_run import RollbackRun


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        (RollbackRun(mismatches=1), [0, 1, 0], ([0, 0], 0)),
        (RollbackRun(mismatches=2), [0, 1, 0, 2], ([0, 1, 0, 2, 0], 2)),
        (RollbackRun(mismatches=2), [0, 1, 0, 2, 3, 0], ([0, 1, 0, 0], 1)),
        (RollbackRun(mismatches=2), [1, 2], ([0], 0)),
        (RollbackRun(mismatches=3), [1, 2], ([1, 2, 0], 2)),
    ],
    ids=str,
)
def test_rollback_run_by_hand(
    rule: Verifier, draft: list[int], expected: tuple[list[int], int]
) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RollbackRun(mismatches=0), "at least 1"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()
