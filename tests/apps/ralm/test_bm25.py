"""BM25 is the formula, has the same bits alone and among others, and refuses what it can't rank."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.apps.ralm.bm25 import Bm25, words

DOCUMENTS = ["The cat sat.", "A dog, a dog and a cat", "", "Rain in Spain in May"]


def by_the_formula(query: str, document: str, k1: float, b: float) -> float:
    """Σ over the query's words of idf · tf / (tf + k1 · (1 - b + b · length / mean length))."""
    texts = [words(text) for text in DOCUMENTS]
    mean = sum(map(len, texts)) / len(texts)
    read, total = words(document), 0.0
    for word in words(query):
        having = sum(word in text for text in texts)
        if having and word in read:
            idf = log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            count = read.count(word)
            total += idf * count / (count + k1 * (1 - b + b * len(read) / mean))
    return total


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0)])
def test_the_formula(k1: float, b: float) -> None:
    """Repeated words of a query count each time, unknown ones never."""
    bm25 = Bm25(DOCUMENTS, k1=k1, b=b)
    for text in ("a cat", "cat cat in", "Spain unicorn", "nothing"):
        scores = bm25.scores(bm25.encode(text), np.arange(4))
        expected = [by_the_formula(text, document, k1, b) for document in DOCUMENTS]
        np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-15)
        order = sorted(range(4), key=lambda i: (-scores[i], i))
        assert bm25.search([bm25.encode(text)], 3) == [order[:3]]


def test_words() -> None:
    assert words("It's Ünder 3 skies!") == ["it", "s", "ünder", "3", "skies"]


def test_alone_and_among_others(bm25: Bm25, corpus: list[str]) -> None:
    """A query finds the same in a batch, and some documents score as they do among all, to the
    last bit."""
    queries = [bm25.encode(text[:9]) for text in corpus[:12]]
    assert bm25.search(queries, 5) == [bm25.search([query], 5)[0] for query in queries]
    every = np.arange(len(corpus))
    for query in queries:
        whole = bm25.scores(query, every)
        assert [bm25.scores(query, np.array([i]))[0] for i in every] == whole.tolist()
        assert bm25.search([query], 1)[0][0] == bm25.search([query], 40)[0][0] == whole.argmax()


def test_texts_without_words() -> None:
    """Nothing is found in nothing, and the first document stands for it."""
    bm25 = Bm25(["", "?"])
    assert bm25.search([bm25.encode("cat")], 1) == [[0]]


@pytest.mark.parametrize(("options", "name"), [({"k1": -1.0}, "k1"), ({"b": 1.5}, "b")])
def test_ranges(options: dict[str, float], name: str) -> None:
    with pytest.raises(ForetokenError, match=f"^{name} is"):
        Bm25(DOCUMENTS, **options)
