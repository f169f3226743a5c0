"""Exact dense retrieval: the true order, whatever else is asked at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.apps.ralm.dense import Dense


def close_calls() -> tuple[Dense, list[Any]]:
    """Documents whose products with the queries differ by less than float32 rounds."""
    random = np.random.default_rng(0)
    base = random.standard_normal(64)
    rows = (base + 1e-6 * random.standard_normal((300, 64))).astype(np.float32)
    queries = random.standard_normal((8, 64)).astype(np.float32)
    dense = Dense([str(i) for i in range(300)], lambda texts: None, vectors=rows)
    return dense, list(queries)


def test_the_order_is_exact() -> None:
    dense, queries = close_calls()
    found = dense.search(queries, 20)
    assert found == [dense.search([query], 20)[0] for query in queries]
    assert [row[:1] for row in found] == dense.search(queries, 1)
    for query, row in zip(queries, found, strict=True):
        exact = (dense.vectors.astype(np.float64) * query).sum(-1)
        assert row == np.lexsort((np.arange(300), -exact))[:20].tolist()
        some = np.array(row)
        assert dense.scores(query, some).tolist() == exact[some].tolist()


def test_queries_are_embedded() -> None:
    dense = Dense(["aa", "b"], lambda texts: [[t.count("a"), t.count("b")] for t in texts])
    assert dense.search([dense.encode("bbb"), dense.encode("a")], 5) == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (np.zeros((3, 4)), r"shape \[3, 4\]; it must be \[2, D\]"),
        (np.zeros(2), r"shape \[2\]"),
        ([[1.0, float("nan")], [0.0, 0.0]], "not finite"),
        ("ab", "give an array"),
    ],
)
def test_wrong_vectors(vectors: Any, said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        Dense(["a", "b"], lambda texts: None, vectors=vectors)


def test_a_query_of_another_width_or_none() -> None:
    dense = Dense(["a", "b"], lambda texts: [[1.0]], vectors=np.eye(2))
    with pytest.raises(ForetokenError, match=r"it must be \[1, 2\]"):
        dense.encode("a")
    failing = Dense(["a", "b"], lambda texts: 1 / 0, vectors=np.eye(2))
    with pytest.raises(ForetokenError, match="embed raised ZeroDivisionError"):
        failing.encode("a")
