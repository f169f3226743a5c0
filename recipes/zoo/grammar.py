"""Grammar correction pairs: clean sentences, and a corruptor that breaks them as learners do.

Each corruption is a small function `(words, rng) -> words or None`; None means "nothing here to
break". The clean sentence is the answer, so the model only ever learns to write clean text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Words = list[str]

AGREEMENT = {
    "is": "are",
    "are": "is",
    "was": "were",
    "were": "was",
    "has": "have",
    "have": "has",
    "does": "do",
    "do": "does",
    "goes": "go",
    "wants": "want",
    "likes": "like",
    "needs": "need",
    "says": "say",
    "makes": "make",
    "knows": "know",
}
TENSE = {
    "went": "goed",
    "bought": "buyed",
    "thought": "thinked",
    "saw": "seed",
    "came": "comed",
    "took": "taked",
    "made": "maked",
    "told": "telled",
    "gave": "gived",
    "ran": "runned",
}
ARTICLES = ("a", "an", "the")
PREPOSITIONS = ("in", "on", "at", "to", "for", "of", "with", "from", "by", "about")
INSTRUCTIONS = (
    "Correct the grammar: {}",
    "Fix the mistakes in this sentence: {}",
    "Correct the grammatical errors in the following sentence.\n\n{}",
    "Rewrite this sentence so that it is correct.\n\n{}",
    "{}\n\nFix the grammar.",
)
SENTENCE = re.compile(r"^[A-Z][A-Za-z' ,]{20,140}[.?!]$")


def _pick(words: Words, wanted: Callable[[str], bool], rng: random.Random) -> int | None:
    places = [i for i, word in enumerate(words) if wanted(word)]
    return rng.choice(places) if places else None


def agreement(words: Words, rng: random.Random) -> Words | None:
    table = AGREEMENT | TENSE
    at = _pick(words, lambda w: w in table, rng)
    return None if at is None else [*words[:at], table[words[at]], *words[at + 1 :]]


def articles(words: Words, rng: random.Random) -> Words | None:
    at = _pick(words, lambda w: w in ARTICLES, rng)
    if at is None:
        return None
    other = rng.choice(["", *(a for a in ARTICLES if a != words[at])])
    return [*words[:at], *([other] if other else []), *words[at + 1 :]]


def prepositions(words: Words, rng: random.Random) -> Words | None:
    at = _pick(words, lambda w: w in PREPOSITIONS, rng)
    if at is None:
        return None
    return [*words[:at], rng.choice([p for p in PREPOSITIONS if p != words[at]]), *words[at + 1 :]]


def spelling(words: Words, rng: random.Random) -> Words | None:
    at = _pick(words, lambda w: len(w) > 4 and w.isalpha() and w.islower(), rng)
    if at is None:
        return None
    word, i = words[at], rng.randrange(1, len(words[at]) - 2)
    broken = rng.choice(
        [
            word[:i] + word[i + 1] + word[i] + word[i + 2 :],
            word[:i] + word[i + 1 :],
            word[:i] + word[i] * 2 + word[i + 1 :],
        ]
    )
    return None if broken == word else [*words[:at], broken, *words[at + 1 :]]


def order(words: Words, rng: random.Random) -> Words | None:
    inner = [i for i in range(1, len(words) - 2) if words[i] != words[i + 1]]
    if not inner:
        return None
    at = rng.choice(inner)
    return [*words[:at], words[at + 1], words[at], *words[at + 2 :]]


CORRUPTIONS = (agreement, articles, prepositions, spelling, order)


def corrupt(sentence: str, rng: random.Random, errors: int | None = None) -> str:
    """Break a sentence in one to three ways; the result always differs from what came in."""
    words = sentence.split(" ")
    for _ in range(errors or rng.choice((1, 1, 2, 3))):
        for corruption in rng.sample(CORRUPTIONS, len(CORRUPTIONS)):
            broken = corruption(words, rng)
            if broken is not None and broken != words:
                words = broken
                break
    result = " ".join(words)
    return result if result != sentence else sentence[:-1]


def pairs(sentences: list[str], count: int, seed: int = 0) -> list[dict[str, object]]:
    """`count` records in the corpus's own format, from sentences that look clean."""
    rng = random.Random(seed)
    clean = sorted({s for s in sentences if SENTENCE.match(s) and 5 <= s.count(" ") <= 25})
    rng.shuffle(clean)
    records = []
    for sentence in clean[:count]:
        asked = rng.choice(INSTRUCTIONS).format(corrupt(sentence, rng))
        records.append(
            {
                "src": "grammar",
                "task": "grammar",
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": sentence},
                ],
            }
        )
    return records
