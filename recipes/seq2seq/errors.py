"""Breaks clean sentences as learners and typists do, for grammar correction pairs.

A rule takes the words of a sentence and a place, and says which words could stand there instead of
that one; None where it doesn't apply. `corrupt` breaks a share of a sentence's words, each at most
once, so the edit rate is what was asked for. A word's surrounding punctuation stays with it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Rule = Callable[[list[str], int, random.Random], list[str] | None]

ARTICLES = ("a", "an", "the")
PREPOSITIONS = ("in", "on", "at", "to", "for", "of", "with", "from", "by", "about", "into")
AGREEMENT = {
    "is": "are",
    "was": "were",
    "has": "have",
    "does": "do",
    "goes": "go",
    "says": "say",
    "makes": "make",
    "takes": "take",
    "gives": "give",
    "seems": "seem",
    "means": "mean",
    "becomes": "become",
    "includes": "include",
    "this": "these",
    "that": "those",
}
FORMS = {
    "went": "goed",
    "bought": "buyed",
    "thought": "thinked",
    "came": "comed",
    "took": "taked",
    "made": "maked",
    "told": "telled",
    "gave": "gived",
    "began": "beginned",
    "children": "childs",
    "people": "peoples",
    "men": "mans",
    "women": "womans",
    "better": "more better",
}
CONFUSED = {
    "their": "there",
    "there": "their",
    "its": "it's",
    "then": "than",
    "than": "then",
    "your": "you're",
    "too": "to",
    "whose": "who's",
    "were": "where",
    "where": "were",
    "who": "which",
    "much": "many",
    "many": "much",
    "less": "fewer",
}
_EITHER_WAY = AGREEMENT | {plural: one for one, plural in AGREEMENT.items()}
_WORD = re.compile(r"^(\W*)([A-Za-z][A-Za-z'’-]*)(\W*)$")


def _from_table(table: dict[str, str]) -> Rule:
    def rule(words: list[str], at: int, rng: random.Random) -> list[str] | None:
        other = table.get(words[at])
        return None if other is None else [other]

    return rule


def articles(words: list[str], at: int, rng: random.Random) -> list[str] | None:
    """Another article, none, or one too many after a preposition."""
    if words[at] in ARTICLES:
        other = rng.choice(("", *(a for a in ARTICLES if a != words[at])))
        return [other] if other else []
    if words[at] in PREPOSITIONS and at + 1 < len(words) and words[at + 1] not in ARTICLES:
        return [words[at], "the"]
    return None


def prepositions(words: list[str], at: int, rng: random.Random) -> list[str] | None:
    """Another preposition."""
    if words[at] not in PREPOSITIONS:
        return None
    return [rng.choice([p for p in PREPOSITIONS if p != words[at]])]


def endings(words: list[str], at: int, rng: random.Random) -> list[str] | None:
    """A plural or verbal s too few, or a past tense's ending."""
    match = _WORD.match(words[at])
    if match is None or len(match[2]) < 5 or not match[2].islower():
        return None
    stem = match[2]
    for ending, other in (("ies", "y"), ("ed", ""), ("ing", ""), ("ly", ""), ("s", "")):
        if stem.endswith(ending) and not stem.endswith("ss"):
            return [match[1] + stem.removesuffix(ending) + other + match[3]]
    return None


def spelling(words: list[str], at: int, rng: random.Random) -> list[str] | None:
    """Two letters swapped, one left out, doubled or replaced by a neighbour in sound."""
    match = _WORD.match(words[at])
    if match is None or len(match[2]) < 4:
        return None
    word, i = match[2], rng.randrange(1, len(match[2]) - 1)
    vowels = {"a": "e", "e": "a", "i": "e", "o": "u", "u": "o"}
    swapped = word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    shorter, doubled = word[:i] + word[i + 1 :], word[:i] + word[i] + word[i:]
    replaced = word[:i] + vowels.get(word[i], "") + word[i + 1 :]
    broken = rng.choice([w for w in (swapped, shorter, doubled, replaced) if w != word])
    return [match[1] + broken + match[3]]


def punctuation(words: list[str], at: int, rng: random.Random) -> list[str] | None:
    """A comma too few or too many, an apostrophe left out, a full stop forgotten."""
    word = words[at]
    if word.endswith(","):
        return [word[:-1]]
    if "'" in word[1:-1]:
        return [word.replace("'", "", 1)]
    if at == len(words) - 1:
        return [word[:-1]] if word.endswith(".") else None
    if word.isalpha() and words[at + 1].islower() and rng.random() < 0.2:
        return [word + ","]
    return None


def order(words: list[str], at: int, rng: random.Random) -> list[str] | None:
    """This word after the next one: `corrupt` takes the place of both."""
    if not 0 < at < len(words) - 2 or not (words[at].isalpha() and words[at + 1].isalpha()):
        return None
    return [words[at + 1], words[at]] if words[at] != words[at + 1] else None


RULES: tuple[tuple[Rule, float], ...] = (
    (articles, 2.0),
    (_from_table(_EITHER_WAY), 3.0),
    (_from_table(FORMS), 3.0),
    (_from_table(CONFUSED), 2.0),
    (prepositions, 1.0),
    (endings, 1.0),
    (spelling, 0.5),
    (punctuation, 1.0),
    (order, 0.2),
)
"""Each with its share among the rules that apply at a place."""


def count_for(words: int, rate: float, rng: random.Random) -> int:
    """How many words to break: `rate` · words, rounded up or down by chance."""
    expected = words * rate
    return int(expected) + (rng.random() < expected % 1)


def corrupt(sentence: str, errors: int, rng: random.Random) -> str:
    """The sentence with so many words broken, or as many as can be."""
    words = sentence.split(" ")
    places = rng.sample(range(len(words)), len(words))
    written = {at: [word] for at, word in enumerate(words)}
    touched: set[int] = set()
    for at in places:
        if errors <= 0:
            break
        found = [(rule, new, w) for rule, w in RULES if (new := rule(words, at, rng)) is not None]
        if not found:
            continue
        rule, new, _ = rng.choices(found, [weight for *_, weight in found])[0]
        taken = {at, at + 1} if rule is order else {at}
        if taken & touched:
            continue
        touched |= taken
        written |= {place: [] for place in taken} | {at: new}
        errors -= 1
    return " ".join(word for at in range(len(words)) for word in written[at])
