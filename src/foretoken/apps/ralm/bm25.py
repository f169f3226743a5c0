"""BM25: documents are scored by the words that they share with the query.

Source: Robertson and Zaragoza 2009, section 3, with the inverse document frequency of Lucene, which
is never negative (Kamphuis et al. 2020, table 1). Frequencies and lengths are the whole corpus's,
whichever documents are scored.

Legend: N documents of the corpus, M documents that are scored, B queries, U words of all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from math import inf, log1p

import numpy as np
from numpy.typing import NDArray

from foretoken.apps.ralm.retriever import Ids, Scores, checked, ranked
from foretoken.apps.search import contenders
from foretoken.errors.values import check_range

Query = Counter[int]
"""How often a query has each word of the corpus."""

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """A text's words in lower case, without punctuation."""
    return _WORD.findall(text.lower())


class Bm25:
    """A `Retriever` by words.

    Args:
        documents: the corpus.
        k1: how much further occurrences of a word count, 0 for nothing.
        b: how much a document's length counts, from 0 to 1.
        tokenize: a text -> its words.

    Raises `ForetokenError` for an empty corpus and numbers out of range.
    """

    def __init__(
        self,
        documents: Seq[str],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        tokenize: Callable[[str], Seq[str]] = words,
    ) -> None:
        check_range(0, inf, k1=k1)
        check_range(0, 1, b=b)
        self.documents = checked(documents)
        self._tokenize, self._words = tokenize, dict[str, int]()
        found: list[list[int]] = []
        counts: list[list[int]] = []
        lengths = np.zeros(len(self.documents))
        for document, text in enumerate(self.documents):
            read = Counter(tokenize(text))
            lengths[document] = read.total()
            for word, count in read.items():
                place = self._words.setdefault(word, len(self._words))
                if place == len(found):
                    found.append([])
                    counts.append([])
                found[place].append(document)
                counts[place].append(count)
        damping = k1 * (1 - b + b * lengths / (lengths.mean() or 1.0))
        self._postings = [
            _Postings(np.array(ids, np.intp), np.array(numbers, np.float64), damping)
            for ids, numbers in zip(found, counts, strict=True)
        ]

    def encode(self, text: str) -> Query:
        read = Counter(self._tokenize(text))
        return Counter({self._words[w]: count for w, count in read.items() if w in self._words})

    def search(self, queries: Seq[Query], k: int) -> list[list[int]]:
        """A word that several queries share is looked up once for all of them."""
        scores = np.zeros((len(queries), len(self.documents)))
        for word in sorted(set().union(*queries)):
            ids, weights = self._postings[word].ids, self._postings[word].weights
            counts = np.array([query[word] for query in queries])
            scores[:, ids] += counts[:, None] * weights
        return [self._best(row, k) for row in scores]

    def scores(self, query: Query, ids: Ids) -> Scores:
        total = np.zeros(len(ids))
        for word in sorted(query):  # in the order of `search`, so that sums have the same bits
            total += query[word] * self._postings[word].of(ids)
        return total

    @staticmethod
    def _best(scores: Scores, k: int) -> list[int]:
        ids = contenders(scores, k)
        return ranked(ids, scores[ids], k)


class _Postings:
    """The documents [n] that have a word, in order, and what it adds to their scores."""

    __slots__ = ("ids", "weights")

    def __init__(self, ids: Ids, counts: NDArray[np.float64], damping: Scores) -> None:
        """counts: [n]; damping: [N], by which a document's counts are damped."""
        documents, n = len(damping), len(ids)
        rarity = log1p((documents - n + 0.5) / (n + 0.5))
        self.ids, self.weights = ids, rarity * counts / (counts + damping[ids])

    def of(self, ids: Ids) -> Scores:
        """What the word adds to the scores of the documents [M], 0 where one lacks it."""
        places = np.searchsorted(self.ids, ids)
        places[places == len(self.ids)] = 0
        return np.where(self.ids[places] == ids, self.weights[places], 0.0)
