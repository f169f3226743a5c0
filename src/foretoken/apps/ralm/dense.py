"""Dense retrieval: documents are scored by the inner product of vectors, all of them compared.

Which document is best must not depend on the other queries of a call, and a product of matrices
rounds otherwise for one row than for several. So the product, in float32, only leaves out what
can't be among the best; the rest is scored in float64, row by row. How wrong an inner product can
be: Higham 2002, section 3.1.

Legend: N documents of the corpus, M documents that are scored, B queries, D numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretoken.apps.ralm.retriever import Ids, Scores, checked, ranked
from foretoken.apps.search import contenders, products
from foretoken.errors import ForetokenError, described, shown

Embed = Callable[[Seq[str]], Any]
"""Texts -> their vectors [texts, D], an array or a list of lists."""

Vector = NDArray[np.float32]


class Dense:
    """A `Retriever` by vectors, exact.

    Args:
        documents: the corpus.
        embed: texts -> vectors [texts, D]. Queries are given one at a time.
        vectors: [N, D] the documents', where they are known; by default `embed` makes them.

    Vectors are kept in float32. Raises `ForetokenError` for an empty corpus and for vectors of
    another shape or that are not finite.
    """

    def __init__(self, documents: Seq[str], embed: Embed, vectors: Any = None) -> None:
        self.documents, self._embed = checked(documents), embed
        rows = self._embedded(self.documents) if vectors is None else vectors
        self.vectors = _checked(rows, len(self.documents), None)
        _, width = self.vectors.shape
        norms = np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors, dtype=np.float64))
        self._wrong_by = 2 * width * 2.0**-24 * float(norms.max())  # times the query's norm

    def encode(self, text: str) -> Vector:
        """[D]"""
        vector: Vector = _checked(self._embedded([text]), 1, self.vectors.shape[1])[0]
        return vector

    def search(self, queries: Seq[Vector], k: int) -> list[list[int]]:
        roughly = products(self.vectors, np.stack(queries))
        return [self._best(query, row, k) for query, row in zip(queries, roughly, strict=True)]

    def scores(self, query: Vector, ids: Ids) -> Scores:
        terms = self.vectors[ids].astype(np.float64) * query
        total: Scores = terms.sum(-1)
        return total

    def _best(self, query: Vector, roughly: Vector, k: int) -> list[int]:
        error = self._wrong_by * float(np.linalg.norm(query.astype(np.float64)))
        ids = contenders(roughly, k, error)
        return ranked(ids, self.scores(query, ids), k)

    def _embedded(self, texts: Seq[str]) -> Any:
        try:
            return self._embed(texts)
        except Exception as error:
            raise described("embed", error) from error


def _checked(vectors: Any, count: int, width: int | None) -> Vector:
    """[count, width] float32; any width for None. Raises `ForetokenError` for anything else."""
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except Exception as error:
        raise ForetokenError(
            f"The vectors of {count} texts are {shown(vectors)}; give an array [{count}, D]."
        ) from error
    if rows.ndim != 2 or len(rows) != count or rows.shape[1] != (width or rows.shape[1]):
        raise ForetokenError(
            f"The vectors of {count} texts have the shape {list(rows.shape)}; it must be [{count}, "
            f"{'D' if width is None else width}]."
        )
    if not np.isfinite(rows).all():
        raise ForetokenError(
            "A text's vector has a number that is not finite; see what embed does."
        )
    return rows
