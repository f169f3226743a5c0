"""Broken sentences for grammar correction."""

from __future__ import annotations

import random


def test_corruptor_always_breaks_and_keeps_the_answer() -> None:
    """Every corruption differs from the sentence, which stays the answer."""
    import grammar

    rng = random.Random(0)
    clean = "The children are playing in the garden with their old friends."
    broken = [grammar.corrupt(clean, rng) for _ in range(200)]
    assert clean not in broken and len(set(broken)) > 50
    for record in grammar.pairs([clean, "Too short.", "no capital here at all, is there now."], 5):
        asked, answer = (m["content"] for m in record["messages"])
        assert answer == clean and clean not in asked
