"""The longest match is copied, as a slow search copies it."""

from __future__ import annotations

from array import array

from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken.lookup.longest_match import copy_after, latest_match, repeated, unmarked


def copied(tokens: list[int], limit: int, longest: int) -> list[int]:
    """Max-Gram by looking everywhere."""
    found: list[int] = []
    for size in range(1, min(longest, len(tokens) - 1) + 1):
        for start in range(len(tokens) - 1 - size, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                found = tokens[start + size :]
                break
    period = len(found)
    again = [tokens[i] == tokens[i - period] for i in range(period, len(tokens))]
    if 0 < period < limit and len(again) >= max(period, 8) and all(again[-max(period, 8) :]):
        found = found * limit
    return found[:limit]


@example([0] * 9, 3, 6)
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 256, 5 * 256, 1 << 16]), min_size=1, max_size=14),
    st.integers(1, 5),
    st.integers(1, 6),
)
def test_max_gram(tokens: list[int], limit: int, longest: int) -> None:
    """The latest of the longest matches, whatever the bytes of the tokens are."""
    assert copy_after(tokens, limit, longest) == copied(tokens, limit, longest)
    assert copy_after(tokens, 0) == []


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=20), st.integers(1, 4), st.integers(1, 6))
def test_the_latest_of_the_longest(tokens: list[int], shortest: int, longest: int) -> None:
    """Within the bounds, and with something after it that is no mark."""
    found = (0, 0)
    for size in range(shortest, longest + 1):
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == tokens[-size:] and tokens[end] >= 0:
                found = size, end
    assert latest_match(array("i", tokens), shortest, longest) == found


def test_a_mark_ends_a_text() -> None:
    assert unmarked([3, 1, -2, 4, -1]) == [3, 1] and unmarked([1, 2]) == [1, 2]
    assert unmarked([-1]) == unmarked([]) == []


def test_a_text_that_repeats_itself_goes_on() -> None:
    """After eight tokens of it, and a whole period; what is no repetition isn't gone on with."""
    assert repeated([7] * 9, 8, 5) == [7] * 5 and repeated([7] * 8, 7, 5) == [7]
    assert repeated([1, 2, 3] * 4, 9, 5) == [1, 2, 3, 1, 2]
    assert repeated([9, *[1, 2, 3] * 3, 1], 8, 5) == [2, 3, 1]
    line = list(range(10))
    assert repeated([*line, *line], 10, 25) == [*line, *line, *line[:5]]
    assert repeated([99, *line[1:], *line], 10, 25) == line
    assert repeated([1, 2], 2, 3) == []
