"""Sentences that are broken as learners break them."""

from __future__ import annotations

import random

import pytest

CLEAN = (
    "The children have taken their books home, and the teacher is waiting in the garden.",
    "She thought about it for a long time, but he didn't say much to any of the people there.",
    "This machine makes better chairs than the one that was bought last year.",
)


def changed(before: str, after: str) -> int:
    """Words to put in, take out or replace: the edit distance."""
    a, b = before.split(), after.split()
    row = [*range(len(b) + 1)]
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


@pytest.mark.parametrize("clean", CLEAN)
def test_so_many_words_are_broken(clean: str) -> None:
    """Each error changes one word, or two that change places; the others stay."""
    from errors import corrupt

    for seed in range(60):
        assert corrupt(clean, 0, random.Random(seed)) == clean
        one = changed(clean, corrupt(clean, 1, random.Random(seed)))
        assert 1 <= one <= 2
        three = corrupt(clean, 3, random.Random(seed))
        assert 1 <= changed(clean, three) <= 6 and three == corrupt(clean, 3, random.Random(seed))


def test_words_that_change_places_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many do: a word is moved once at most."""
    import errors

    monkeypatch.setattr(errors, "RULES", ((errors.order, 1.0),))
    for seed in range(60):
        broken = errors.corrupt(CLEAN[1], 6, random.Random(seed))
        assert sorted(broken.split()) == sorted(CLEAN[1].split()) and broken != CLEAN[1]


def test_where_nothing_applies_nothing_is_broken() -> None:
    from errors import corrupt

    assert corrupt("1 2 3", 2, random.Random(0)) == "1 2 3"


def test_every_rule_is_used() -> None:
    """And makes something else of the words that it replaces."""
    from errors import RULES

    rng, words = random.Random(0), [clean.split() for clean in CLEAN]
    for rule, share in RULES:
        made = [
            (text[at], new)
            for _ in range(20)
            for text in words
            for at in range(len(text))
            if (new := rule(text, at, rng)) is not None
        ]
        assert made and all(new != [old] for old, new in made) and share > 0


def test_the_rate_is_met_on_average() -> None:
    from errors import count_for

    rng = random.Random(1)
    counts = [count_for(30, 0.05, rng) for _ in range(4000)]
    assert set(counts) == {1, 2} and abs(sum(counts) / 4000 - 1.5) < 0.05
