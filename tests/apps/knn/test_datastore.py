"""Entries are the model's states, and the nearest are those that comparing all finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import ForetokenError
from foretoken.apps.knn import Neighbours
from foretoken.testing import Pair


def test_entries_are_states_and_what_followed(
    pair: Pair, corpus: list[list[int]], neighbours: Neighbours
) -> None:
    """By transformers: the first text's second window, and the last text."""
    assert len(neighbours) == sum(len(text) - 1 for text in corpus)

    def states(ids: list[int]) -> Any:
        with torch.inference_mode():
            return pair.transformers.model(torch.tensor([ids])).last_hidden_state[0].numpy()

    first, last = corpus[0], corpus[-1]
    np.testing.assert_allclose(neighbours.keys[32:59], states(first[32:59]), rtol=1e-5, atol=1e-5)
    assert neighbours.tokens[32:59].tolist() == first[33:60]
    np.testing.assert_allclose(neighbours.keys[-2:], states(last[:2]), rtol=1e-5, atol=1e-5)
    assert neighbours.tokens[-2:].tolist() == last[1:]


@pytest.mark.parametrize("text", [[97, 1, 2], [1, 2, 97], [1, -1, 2]])
def test_ids_of_another_vocabulary(pair: Pair, text: list[int]) -> None:
    with pytest.raises(ForetokenError, match="outside the vocabulary of 97"):
        Neighbours.build(pair.target, [[1, 2], text])


@pytest.mark.parametrize(("count", "k"), [(20000, 5), (700, 24), (10, 24), (3, 3)])
def test_the_nearest_are_found(count: int, k: int) -> None:
    """Among entries of which many differ by less than float32 can tell; equal ones by their ids."""
    random = np.random.default_rng(0)
    keys = 100 + random.normal(size=(count, 8)).astype(np.float32) * np.float32(1e-4)
    keys[count // 2] = keys[0]
    store = Neighbours(keys, np.arange(count))
    queries = 100 + random.normal(size=(4, 8)) * 1e-4
    ids, distances = store.search(queries, k)
    for query, near, far in zip(queries, ids, distances, strict=True):
        exact = np.square(store.keys - query).sum(-1)
        right = sorted(np.lexsort((np.arange(count), exact))[:k])
        assert near.tolist() == right
        assert far.tolist() == exact[right].tolist()


def test_a_query_alone_finds_the_same(neighbours: Neighbours) -> None:
    queries = neighbours.keys[::100] + 0.01
    together, distances = neighbours.search(queries, 7)
    for query, ids, far in zip(queries, together, distances, strict=True):
        [alone], [again] = neighbours.search(query[None], 7)
        assert (alone.tolist(), again.tolist()) == (ids.tolist(), far.tolist())


def test_files(neighbours: Neighbours, tmp_path: Path) -> None:
    neighbours.save(tmp_path / "store")
    again = Neighbours.load(tmp_path / "store")
    assert (again.keys == neighbours.keys).all() and (again.tokens == neighbours.tokens).all()
    (tmp_path / "wrong").write_bytes((tmp_path / "store").read_bytes()[:1000])
    objects = np.array([[1.0]], dtype=object)  # pickled, so that code could be in it
    np.savez(tmp_path / "objects.npz", keys=objects, tokens=[1])
    for path in (tmp_path / "wrong", tmp_path / "none", tmp_path / "objects.npz"):
        with pytest.raises(ForetokenError, match="can't be read as a datastore"):
            Neighbours.load(path)


def test_files_of_numpy_that_are_no_datastores(neighbours: Neighbours, tmp_path: Path) -> None:
    """A bare array, and compressed arrays of which some bytes are wrong."""
    np.save(tmp_path / "bare.npy", neighbours.keys)
    np.savez_compressed(tmp_path / "damaged.npz", keys=neighbours.keys, tokens=neighbours.tokens)
    data = bytearray((tmp_path / "damaged.npz").read_bytes())
    data[200:260] = b"\xff" * 60
    (tmp_path / "damaged.npz").write_bytes(data)
    for name in ("bare.npy", "damaged.npz"):
        with pytest.raises(ForetokenError, match="can't be read as a datastore"):
            Neighbours.load(tmp_path / name)


def test_what_is_no_datastore(pair: Pair) -> None:
    for keys, tokens, said in (
        (np.ones((2, 3)), [1], r"shape \[2, 3\]"),
        (np.ones((0, 3)), [], "at least one entry"),
        (np.full((1, 3), np.nan), [1], "not finite"),
        (np.ones((1, 3)), [-1], "below 0"),
    ):
        with pytest.raises(ForetokenError, match=said):
            Neighbours(keys, tokens)
    with pytest.raises(ForetokenError, match="No text has two tokens"):
        Neighbours.build(pair.target, [[1], []])
    with pytest.raises(ForetokenError, match="window is 1000"):
        Neighbours.build(pair.target, [[1, 2]], window=1000)


def test_of_equal_entries_the_lowest_ids() -> None:
    ids, _ = Neighbours(np.ones((1000, 4)), np.arange(1000)).search(np.ones((1, 4)), 5)
    assert ids[0].tolist() == [0, 1, 2, 3, 4]
