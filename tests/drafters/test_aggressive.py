"""Aggressive decoding: the input is drafted while the output follows it, and where it returns."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copying_drafters import bound, draft, ends, few, sequence
from foretoken import ForetokenError
from foretoken.drafters.aggressive import Aggressive


def copied_from(given: Seq[int], output: Seq[int]) -> list[int]:
    """Aggressive decoding by hand: an end of the output that stands once in the input."""
    if not output:
        return list(given)
    for size in range(1, len(output) + 1):
        if len(found := ends(given, output[-size:])) == 1:
            return list(given[found[0] :])
    return []


@given(few, few, st.booleans())
def test_aggressive_decoding(given_: list[int], output: list[int], as_reference: bool) -> None:
    """The whole input first; then what follows an end of the output that occurs once."""
    drafter = bound(Aggressive())
    own = sequence([5], (), [given_]) if as_reference else sequence(given_)
    for token in [*output, None]:
        assert draft(drafter, own) == copied_from(given_, own.output)
        assert draft(drafter, own, 2) == copied_from(given_, own.output)[:2]
        if token is not None:
            own.tokens.append(token)
    copy = sequence(own.tokens[: own.prompt_length], own.output[:1], own.references)
    drafter.fork(own, copy)
    assert draft(drafter, copy) == copied_from(given_, copy.output)


def test_aggressive_decoding_stays_in_one_reference() -> None:
    """A draft ends where its reference does, and several are one input."""
    drafter = bound(Aggressive(num_speculative_tokens=3))
    given_ = [[1, 2, 3, 4, 5], [6, 7, 3]]
    assert draft(drafter, sequence([0], [], given_)) == [1, 2, 3]
    assert draft(drafter, sequence([0], [4], given_)) == [5]
    assert draft(drafter, sequence([0], [3], given_)) == []  # it stands in both
    assert draft(drafter, sequence([0], [7, 3], given_)) == []  # the end
    assert draft(drafter, sequence([0], [8, 2], given_)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Aggressive(0), "num_speculative_tokens is 0; it must be at least 1"),
    ],
)
def test_wrong_options(make: Callable[[], object], message: str) -> None:
    """The message names the option and what it must be."""
    with pytest.raises(ForetokenError, match=message):
        make()
