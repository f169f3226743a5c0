"""Whether a text repeats itself, as the greedy text of small models does."""

from __future__ import annotations

from collections.abc import Sequence as Seq

DISTINCT_4 = 0.8
"""A text with a smaller share of different 4-grams loops."""


def distinct_4(tokens: Seq[object]) -> float:
    """Different 4-grams over all 4-grams; 1 where there are none."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0
