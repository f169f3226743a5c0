"""The longest match is copied, as a slow search copies it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.lookup.longest_match import copy_after


def copied(tokens: list[int], limit: int, longest: int) -> list[int]:
    """Max-Gram by looking everywhere."""
    found: list[int] = []
    for size in range(1, min(longest, len(tokens) - 1) + 1):
        for start in range(len(tokens) - 1 - size, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                found = tokens[start + size :]
                break
    return (found * limit)[:limit]


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
