"""The forced draft of a given answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from copying_drafters import bound, draft, sequence
from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.forced import Forced
from foretoken.sampling.sequence import Sequence


def test_forced() -> None:
    """The given answer from where the output ends, whatever was written."""
    drafter = bound(Forced(3))
    assert draft(drafter, sequence([1, 2], [], [[7, 8, 9, 6], [5]])) == [7, 8, 9]
    assert draft(drafter, sequence([1, 2], [4, 4], [[7, 8, 9, 6]])) == [9, 6]
    assert draft(drafter, sequence([1, 2], [4, 4], [[7]])) == []
    assert draft(drafter, sequence([1, 2, 3], [4])) == [2, 3]


def test_an_answer_to_an_encoders_source() -> None:
    """The answer that is given, not the source; without one, the source."""
    for references, expected in (([[7, 8, 9, 6]], [7, 8, 9]), ([], [4, 5, 6])):
        params = SamplingParams(references=references)
        asked = Sequence.start([1], params, source=[4, 5, 6])
        assert draft(bound(Forced(3)), asked) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Forced(0), "num_speculative_tokens is 0; it must be at least 1"),
    ],
)
def test_wrong_options(make: Callable[[], object], message: str) -> None:
    """The message names the option and what it must be."""
    with pytest.raises(ForetokenError, match=message):
        make()
