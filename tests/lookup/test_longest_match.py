"""The longest match is copied, as a slow search copies it."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken.lookup.longest_match import copy_after, repeated


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


def test_a_text_that_repeats_itself_goes_on() -> None:
    """After eight tokens of it, and a whole period; what is no repetition isn't gone on with."""
    assert repeated([7] * 9, 8, 5) == [7] * 5 and repeated([7] * 8, 7, 5) == [7]
    assert repeated([1, 2, 3] * 4, 9, 5) == [1, 2, 3, 1, 2]
    assert repeated([9, *[1, 2, 3] * 3, 1], 8, 5) == [2, 3, 1]
    line = list(range(10))
    assert repeated([*line, *line], 10, 25) == [*line, *line, *line[:5]]
    assert repeated([99, *line[1:], *line], 10, 25) == line
    assert repeated([1, 2], 2, 3) == []
