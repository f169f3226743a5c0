"""Approximate dense retrieval through a graph of near neighbours (hnswlib).

Source: Malkov and Yashunin 2018 (HNSW). The graph decides which document is the best one, in the
plain loop as in the speculative one, so that what is lossless here is lossless for its answers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from foretoken.apps.ralm.dense import Dense, Embed, Vector
from foretoken.apps.ralm.retriever import Ids, Scores, ranked
from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported
from foretoken.errors.values import check_range


class Hnsw:
    """A `Retriever` by vectors, approximate.

    Args:
        documents, embed, vectors: as for `Dense`.
        neighbours: edges of a node (M in the paper).
        ef_construction: candidates while the graph is built.
        ef: candidates of a search; at least as many as documents are wanted of one.

    Raises `ForetokenError` where hnswlib isn't installed, and for what `Dense` refuses.
    """

    def __init__(
        self,
        documents: Seq[str],
        embed: Embed,
        vectors: Any = None,
        *,
        neighbours: int = 16,
        ef_construction: int = 200,
        ef: int = 64,
    ) -> None:
        hnswlib = imported("hnswlib", "hnsw", "Retrieval through a graph needs")
        check_range(2, 1000, neighbours=neighbours, ef_construction=ef_construction)
        self._exact, self._ef = Dense(documents, embed, vectors), ef
        self.documents = self._exact.documents
        count, width = self._exact.vectors.shape
        self._graph = hnswlib.Index(space="ip", dim=width)
        self._graph.init_index(
            max_elements=count, ef_construction=ef_construction, M=neighbours, random_seed=0
        )
        # In order, on one thread: the graph, and with it every answer, is the same each time.
        self._graph.add_items(self._exact.vectors, np.arange(count), num_threads=1)
        self._graph.set_ef(ef)

    def encode(self, text: str) -> Vector:
        """[D]"""
        return self._exact.encode(text)

    def search(self, queries: Seq[Vector], k: int) -> list[list[int]]:
        """All `ef` candidates are ordered, whatever `k` is, so that the best doesn't depend on it.

        Raises `ForetokenError` for a `k` above `ef`.
        """
        if min(k, len(self.documents)) > self._ef:
            raise ForetokenError(
                f"{k} documents are wanted of a search and ef is {self._ef}; give Hnsw an ef of at "
                "least that many."
            )
        found, _ = self._graph.knn_query(np.stack(queries), k=min(self._ef, len(self.documents)))
        rows = [np.asarray(row, np.intp) for row in found]
        return [
            ranked(ids, self.scores(query, ids), k)
            for query, ids in zip(queries, rows, strict=True)
        ]

    def scores(self, query: Vector, ids: Ids) -> Scores:
        return self._exact.scores(query, ids)
