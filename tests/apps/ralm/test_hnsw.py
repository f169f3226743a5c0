"""The graph's search, through a stand-in for hnswlib where it isn't installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.apps.ralm import Dense, Hnsw
from ralm_corpus import embed


class Index:
    """hnswlib's, as far as it is used: every second document is found, in no order."""

    def __init__(self, space: str, dim: int) -> None:
        assert space == "ip"
        self.dim = dim

    def init_index(self, max_elements: int, ef_construction: int, M: int, random_seed: int) -> None:
        self.room = max_elements

    def add_items(self, data: Any, ids: Any, num_threads: int) -> None:
        assert data.shape == (self.room, self.dim) and num_threads == 1
        self.ids = ids

    def set_ef(self, ef: int) -> None:
        self.ef = ef

    def knn_query(self, data: Any, k: int) -> tuple[Any, Any]:
        assert k <= self.ef
        found = np.tile(self.ids[::-2][:k], (len(data), 1)).astype(np.uint64)
        return found, np.zeros(found.shape)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "hnswlib", SimpleNamespace(Index=Index))
    yield


def test_candidates_are_ordered_exactly(library: None, corpus: list[str], dense: Dense) -> None:
    """Of what the graph finds, the best comes first, whatever `k` is."""
    hnsw = Hnsw(corpus, embed, ef=10)
    queries = [hnsw.encode(text[:5]) for text in corpus[:4]]
    found = hnsw.search(queries, 10)
    assert [row[:1] for row in found] == hnsw.search(queries, 1)
    for query, row in zip(queries, found, strict=True):
        scores = dense.scores(query, np.array(row)).tolist()
        assert scores == sorted(scores, reverse=True)
        assert sorted(row) == list(range(21, 40, 2))


def test_more_documents_than_candidates(library: None, corpus: list[str]) -> None:
    """More than there are is no more than all of them."""
    few = Hnsw(corpus[:6], embed, ef=10)
    assert sorted(few.search([few.encode("a")], 99)[0]) == [1, 3, 5]
    hnsw = Hnsw(corpus, embed, ef=10)
    with pytest.raises(ForetokenError, match="11 documents are wanted of a search and ef is 10"):
        hnsw.search([hnsw.encode("a")], 11)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, corpus: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    with pytest.raises(ForetokenError, match=r"pip install 'foretoken\[hnsw\]'"):
        Hnsw(corpus, embed)
