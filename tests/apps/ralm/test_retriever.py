"""The order of documents, and the cache that guesses."""

from __future__ import annotations

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.apps.ralm import Bm25, Dense
from foretoken.apps.ralm.retriever import LocalCache, checked, ranked


def test_equals_are_ordered_by_id() -> None:
    ids, scores = np.array([7, 3, 5, 1]), np.array([1.0, 2.0, 2.0, 0.0])
    assert ranked(ids, scores, 3) == [3, 5, 7]
    assert ranked(ids, scores, 9) == [3, 5, 7, 1]


def test_the_cache_guesses_as_the_corpus_would(bm25: Bm25, dense: Dense) -> None:
    """Where the corpus's best document is in the cache, it is the guess; without, the best of what
    is there is."""
    for retriever in (bm25, dense):
        for text in ("abc", "Zy!", "the rain"):
            query = retriever.encode(text)
            [found] = retriever.search([query], 10)
            cache = LocalCache(retriever)
            cache.insert([found[::-1], found[3:]])
            assert len(cache) == 10
            assert cache.guess(query) == found[0]
            without = LocalCache(retriever)
            without.insert([found[4:]])
            assert without.guess(query) == found[4]


@pytest.mark.parametrize("documents", [[], "a text", [1], None])
def test_no_corpus(documents: object) -> None:
    with pytest.raises(ForetokenError, match="documents"):
        checked(documents)
