"""The acceptance that is counted without an engine."""

from __future__ import annotations


def test_chain_counts_tokens_and_passes() -> None:
    """A pass takes the agreeing run, at most gamma, and one token more."""
    import evaluate

    assert evaluate.chain([True] * 10, gamma=4) == (10, 2)
    assert evaluate.chain([False] * 3, gamma=4) == (3, 3)
    assert evaluate.chain([True, False, True, True, False], gamma=4) == (5, 2)
