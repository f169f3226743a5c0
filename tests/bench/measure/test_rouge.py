"""ROUGE-L against numbers of the package rouge-score, and its subsequences against all of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken.bench.measure.rouge import longest_common, rouge_l, tokens

SHORT = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("text", "references", "expected"),
    [
        ("a cat sat on mat", ["the cat sat on the mat"], 0.7272727272727272),
        (
            "The runners were running quickly through the cities.",
            ["A runner runs quick through a city"],
            0.5333333333333333,
        ),
        ("happily relational conditions", ["happy relation conditional"], 0.6666666666666666),
        ("The skies are dying; he lies, tying ties", ["sky die lie tie"], 0.6666666666666666),
        ("It's 3.14, not 3,140!", ["it s 3 14 and not 3 140"], 0.9333333333333333),
        ("Ünïcode naïve café", ["unicode naive cafe"], 0.0),
        (
            "proceed, exceed and succeed in innings and outings",
            ["proceeding exceeded succeeds inning outing"],
            0.6153846153846154,
        ),
        ("one two three four five", ["five four three two one"], 0.20000000000000004),
        ("the the the cat", ["the cat the cat"], 0.75),
        (
            "generalizations of oscillators",
            ["generalize oscillate", "generalization of an oscillator"],
            0.8571428571428571,
        ),
        (
            "Flies tried to spy on the enjoyable news",
            ["fly try spies enjoy new"],
            0.15384615384615385,
        ),
        ("", ["something"], 0.0),
        ("...!?", ["..."], 0.0),
        ("words", ["", "word"], 1.0),
        (
            "Summaries repeat sentences of the article in their own order.",
            [
                "The article's sentences are repeated, in order, by a summary.",
                "Summary: repeats the article",
            ],
            0.5714285714285715,
        ),
    ],
)
def test_the_numbers_are_those_of_rouge_score(
    text: str, references: list[str], expected: float
) -> None:
    """The F-measures of rouge-score 0.1.2 with stemming, to the last bit."""
    assert rouge_l(text, references) == expected


def test_tokens_of_three_letters_are_not_stemmed() -> None:
    """Everything but a-z and 0-9 separates tokens; the stemmer sees the longer ones."""
    assert tokens("Was running: The_dogs' 2nd é-mail") == [
        "was",
        "run",
        "the",
        "dog",
        "2nd",
        "mail",
    ]


@given(SHORT, SHORT)
def test_longest_common_subsequence(a: list[str], b: list[str]) -> None:
    """As long as the longest of all subsequences of one that the other has too."""

    def subsequences(items: list[str]) -> set[tuple[str, ...]]:
        return {c for n in range(len(items) + 1) for c in combinations(items, n)}

    assert longest_common(a, b) == max(map(len, subsequences(a) & subsequences(b)))
