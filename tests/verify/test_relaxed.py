"""Relaxed acceptance: what its rank and its margin let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approximate_rules import EVEN, greedy_chain
from foretoken import ForetokenError
from foretoken.protocols import Verifier
from foretoken.verify.relaxed import Relaxed


@pytest.mark.parametrize(
    ("rule", "draft", "expected"),
    [
        (Relaxed(top_k=2, delta=0.9), [1, 1, 2], ([1, 1, 0], 2)),
        (Relaxed(top_k=4, delta=0.1001), [1, 0, 2], ([1, 0, 0], 1)),
        (Relaxed(top_k=4, delta=0.0999), [1, 0, 2], ([0], 0)),
    ],
    ids=str,
)
def test_relaxed_by_hand(rule: Verifier, draft: list[int], expected: tuple[list[int], int]) -> None:
    """One step on a target that gives 0.4, 0.3, 0.2, 0.1 everywhere, worked out by hand."""
    assert greedy_chain(rule, [EVEN] * (len(draft) + 1), draft) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Relaxed(top_k=0), "at least 1"),
        (lambda: Relaxed(delta=-0.1), "at least 0"),
    ],
)
def test_wrong_parameters(make: Callable[[], Verifier], message: str) -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ForetokenError, match=message):
        make()


def test_of_two_likeliest_tokens_the_first_is_greedy() -> None:
    """Without a margin, the other one doesn't pass."""
    even = [0.4, 0.4, 0.2]
    assert greedy_chain(Relaxed(top_k=3, delta=0), [even, even], [1]) == ([0], 0)
