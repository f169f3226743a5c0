"""ROUGE-L (Lin, 2004): how much of a reference an answer repeats in the same order.

Lin's tokens as the package rouge-score (0.1.2, `use_stemmer=True`) cuts them, and its numbers:
lower-case runs of a-z and 0-9; those longer than three letters are stemmed (Porter, 1980, with
NLTK's extensions).
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

from foretoken.bench.measure.library import library

_TOKEN = re.compile("[a-z0-9]+")
_UNSTEMMED = 3  # letters


def rouge_l(text: str, references: Seq[str]) -> float:
    """The largest F-measure, 0 to 1, of a text against one of the references.

    Raises `ForetokenError` where nltk, whose stemmer it uses, is not installed.
    """
    written = tokens(text)
    return max(_f_measure(written, tokens(reference)) for reference in references)


def tokens(text: str) -> list[str]:
    """The stems that are compared."""
    words = _TOKEN.findall(text.lower())
    return [_stemmer().stem(word) if len(word) > _UNSTEMMED else word for word in words]


@cache
def _stemmer() -> Any:
    return library("nltk.stem.porter").PorterStemmer()


def _f_measure(written: Seq[str], wanted: Seq[str]) -> float:
    common = longest_common(written, wanted)
    if not common:
        return 0.0
    precision, recall = common / len(written), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def longest_common(a: Seq[str], b: Seq[str]) -> int:
    """The length of the longest common subsequence, by dynamic programming row by row."""
    row = [0] * (len(b) + 1)
    for left in a:
        above, diagonal = row, 0
        row = [0]
        for place, right in enumerate(b, 1):
            row.append(diagonal + 1 if left == right else max(above[place], row[-1]))
            diagonal = above[place]
    return row[-1]
