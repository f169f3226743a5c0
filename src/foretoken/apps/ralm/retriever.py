"""What finds documents, and a request's own cache of them.

Legend: N documents of the corpus, M documents that are scored.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import ForetokenError
from foretoken.errors.values import typed

Ids = NDArray[np.intp]
Scores = NDArray[np.float64]


class Retriever(Protocol):
    """Finds documents for a text. It may be asked from two threads at a time.

    What `search` finds for a query must depend neither on the other queries of the call nor, but
    for where the list ends, on `k`: a document that was found alone is compared with one that was
    found among others.
    """

    @property
    def documents(self) -> Seq[str]:
        """The corpus; a document's id is its place."""
        ...

    def encode(self, text: str) -> Any:
        """The query that stands for a text."""
        ...

    def search(self, queries: Seq[Any], k: int) -> list[list[int]]:
        """One retrieval over the whole corpus: for each query the ids of the best documents, the
        best first and of equals the lowest id, at least one and at most `k`."""
        ...

    def scores(self, query: Any, ids: Ids) -> Scores:
        """[M] the scores of some documents [M], the same that `search` orders them by."""
        ...


class LocalCache:
    """The documents that one request has retrieved so far; it guesses the next one among them.

    It scores as the corpus does, so where it holds the best document, that is its guess (Zhang et
    al. 2024, RaLMSpec, section 3).
    """

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._ids = np.empty(0, np.intp)

    def __len__(self) -> int:
        return len(self._ids)

    def insert(self, found: Iterable[Seq[int]]) -> None:
        """Keep the documents of a retrieval."""
        for ids in found:
            self._ids = np.union1d(self._ids, np.asarray(ids, np.intp))

    def guess(self, query: Any) -> int:
        """The id of the best document in the cache, which must hold one."""
        return ranked(self._ids, self._retriever.scores(query, self._ids), 1)[0]


def ranked(ids: Ids, scores: Scores, k: int) -> list[int]:
    """The `k` best of the documents [M] by their scores [M], of equals the lowest id first."""
    chosen: list[int] = ids[np.lexsort((ids, -scores))[:k]].tolist()
    return chosen


def checked(documents: Any) -> tuple[str, ...]:
    """The corpus. Raises `ForetokenError` where it is no list of texts, or empty."""
    texts: tuple[str, ...] = typed("documents", documents, Seq[str])
    if not texts:
        raise ForetokenError("The corpus has no documents; give at least one.")
    return texts
