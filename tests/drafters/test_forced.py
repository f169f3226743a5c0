"""The forced draft of a given answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from copying_drafters import bound, draft, sequence
from foretoken import ForetokenError
from foretoken.drafters.forced import Forced


def test_forced() -> None:
    """The given answer from where the output ends, whatever was written."""
    drafter = bound(Forced(3))
    assert draft(drafter, sequence([1, 2], [], [[7, 8, 9, 6], [5]])) == [7, 8, 9]
    assert draft(drafter, sequence([1, 2], [4, 4], [[7, 8, 9, 6]])) == [9, 6]
    assert draft(drafter, sequence([1, 2], [4, 4], [[7]])) == []
    assert draft(drafter, sequence([1, 2, 3], [4])) == [2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Forced(0), "at least 1"),
    ],
)
def test_wrong_options(make: Callable[[], object], message: str) -> None:
    """The message names the option and what it must be."""
    with pytest.raises(ForetokenError, match=message):
        make()
