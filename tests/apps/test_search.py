"""Products of many vectors, and who may be among the best."""

from __future__ import annotations

import numpy as np
import pytest

from foretoken.apps import search
from foretoken.apps.search import contenders, products


def test_contenders() -> None:
    """Nobody who could be among the best is left out: neither equals nor the nearly equal."""
    scores = np.array([3.0, 1.0, 2.0, 2.0, 0.5])
    assert contenders(scores, 2).tolist() == [0, 2, 3]
    assert contenders(scores, 1, error=0.5).tolist() == [0, 2, 3]
    assert contenders(scores, 1, error=0.4).tolist() == [0]
    assert contenders(scores, 9).tolist() == [0, 1, 2, 3, 4]


def test_few_are_measured() -> None:
    scores = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    assert len(contenders(scores, 256, 0.0)) == 256
    assert 256 <= len(contenders(scores, 256, 1e-3)) < 400


def test_products() -> None:
    """One query's, a few's and many queries' are nearly the exact ones."""
    random = np.random.default_rng(0)
    vectors, queries = (random.normal(size=(n, 48)).astype(np.float32) for n in (500, 19))
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    for some in (queries[:1], queries[:3], queries):
        found = np.stack(list(products(vectors, some)))
        np.testing.assert_allclose(found, exact[: len(some)], atol=1e-4)


def test_products_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vector's product stands at its own place, also in the last block, which is shorter."""
    monkeypatch.setattr(search, "_BLOCK", 64)
    vectors = np.arange(300, dtype=np.float32).reshape(150, 2)
    [found] = products(vectors, np.array([[0.0, 1.0]], np.float32))
    assert found.tolist() == vectors[:, 1].tolist()
