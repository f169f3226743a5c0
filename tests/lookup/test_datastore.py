"""The datastore: what it finds is what reading all texts finds; what it can't trust it refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError
from foretoken.lookup.datastore import ORDERED, Datastore, _segments, add, build, suffix_array

Texts = list[list[int]]

ids = st.sampled_from([1, 255, 256])  # in the other order of bytes they'd stand in another order
texts = st.lists(st.lists(ids, max_size=12), min_size=1, max_size=6)
phrases = st.lists(ids, min_size=1, max_size=8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 6))
def test_suffix_array_is_the_sorted_suffixes(tokens: list[int], doublings: int) -> None:
    """By as many tokens as were asked for; with enough of them, the whole suffixes."""
    ordered = 1 << doublings
    found = suffix_array(np.array(tokens), ordered).tolist()
    assert sorted(found) == list(range(len(tokens)))
    keys = [tokens[place : place + ordered] for place in found]
    assert keys == sorted(keys)


def naive(documents: Texts, phrase: list[int], length: int) -> Counter[tuple[int, ...]]:
    """What follows a phrase, read off every place of every text."""
    size = len(phrase)
    return Counter(
        tuple(text[at + size : at + size + length])
        for text in documents
        for at in range(len(text) - size + 1)
        if text[at : at + size] == phrase
    )


@given(texts, texts, phrases, st.sampled_from([300, 100_000]))
def test_lookups_are_those_of_naive_search(
    tmp_path_factory: pytest.TempPathFactory,
    first: Texts,
    second: Texts,
    phrase: list[int],
    vocab_size: int,
) -> None:
    """Over texts that came at once and later, in two bytes and in four."""
    folder, made_for = tmp_path_factory.mktemp("store"), {"vocab_size": vocab_size}
    documents = [[0], *first, *second, [1]]
    build(folder, made_for, [[0], *first], segment=20)
    add(folder, made_for, [*second, [1]], segment=20)
    store = Datastore(folder, made_for)
    assert store.tokens == sum(len(text) + 1 for text in documents if text)
    known = max(
        (size for size in range(1, len(phrase) + 1) if naive(documents, phrase[-size:], 0)),
        default=0,
    )
    for shortest in (1, 3):
        assert store.longest(phrase, shortest, 16) == (known if known >= shortest else 0)
    rows = store.continuations(phrase, 3, 1000).tolist()
    assert rows == sorted(rows)
    inside = [tuple(row[: row.index(vocab_size)] if vocab_size in row else row) for row in rows]
    assert Counter(inside) == naive(documents, phrase, 3)


def test_matches_are_bounded_and_spread(tmp_path: Path) -> None:
    """Of too many places a tenth is read, and what follows keeps its shares over all segments."""
    build(tmp_path, {"vocab_size": 9}, [[1, 2]] * 600 + [[1, 3]] * 300 + [[1, 4]] * 100, segment=99)
    rows = Datastore(tmp_path, {"vocab_size": 9}).continuations([1], 1, 100)
    counts = Counter(rows[:, 0].tolist())
    assert counts.total() == 100
    assert all(abs(counts[token] - share) <= 5 for token, share in ((2, 60), (3, 30), (4, 10)))


def test_long_texts_and_phrases(tmp_path: Path) -> None:
    """A text longer than a segment is cut; a phrase longer than what is sorted is shortened."""
    build(tmp_path, {"vocab_size": 50}, [list(range(50)) * 4], segment=150)
    store = Datastore(tmp_path, {"vocab_size": 50})
    assert store.tokens == 202
    assert store.longest(list(range(50)) * 2, 1, 1000) == ORDERED
    parts = _segments([[1, 2], [3, 4], [5]], 9, 5)
    assert [part.tolist() for part in parts] == [[1, 2, 9], [3, 4, 9, 5, 9]]


def test_old_segments_are_left_alone(tmp_path: Path) -> None:
    """Adding writes new files, and the index over the old one."""
    build(tmp_path, {"vocab_size": 5}, [[1, 2, 3]])
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.npy")}
    add(tmp_path, {"vocab_size": 5}, [[3, 2, 1]])
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.npy")}
    assert before.items() < after.items() and len(after) == 2 * len(before) == 4


def test_refusals(tmp_path: Path) -> None:
    """One sentence for a folder that holds nothing, something else, or damaged files."""
    made_for: dict[str, Any] = {"vocab_size": 5, "tokenizer": "a"}
    store = tmp_path / "store"
    with pytest.raises(ForetokenError, match="can't be read as a datastore"):
        Datastore(store, made_for)
    with pytest.raises(ForetokenError, match="from 1 to 5 and the vocabulary 5"):
        build(store, made_for, [[1, 5]])
    with pytest.raises(ForetokenError, match="no text"):
        build(store, made_for, [[]])
    build(store, made_for, [[1, 2, 3]])
    with pytest.raises(ForetokenError, match="holds a datastore already"):
        build(store, made_for, [[1]])
    with pytest.raises(ForetokenError, match="made for vocab_size 5 and this target has 6"):
        Datastore(store, {"vocab_size": 6})
    with pytest.raises(ForetokenError, match="made for tokenizer a and this target has b"):
        add(store, {"vocab_size": 5, "tokenizer": "b"}, [[1]])
    with pytest.raises(ForetokenError, match="can't be written"):
        build(store / "index.npz" / "x", made_for, [[1]])
    for name in ("index.npz", "0.tokens.npy", "0.suffixes.npy"):
        file = store / name
        whole = file.read_bytes()
        changed = whole[:-1] + bytes([whole[-1] ^ 1]) if name != "index.npz" else b"text"
        for damaged in (whole[:-1], whole[:20], b"", changed):
            file.write_bytes(damaged)
            with pytest.raises(ForetokenError, match="damaged"):
                Datastore(store, made_for)
        file.write_bytes(whole)
    np.save(store / "0.tokens.npy", np.array([1, 2, 3, 5], np.uint16))  # bytes in another order
    with pytest.raises(ForetokenError, match="damaged"):
        Datastore(store, made_for)
    (store / "0.tokens.npy").unlink()
    with pytest.raises(ForetokenError, match="missing or damaged"):
        Datastore(store, made_for)


@pytest.mark.parametrize("vocab_size", [65_535, 65_536])
def test_the_mark_is_stored_too(tmp_path: Path, vocab_size: int) -> None:
    """It is one more than the largest id, for which two bytes may be too few."""
    build(tmp_path, {"vocab_size": vocab_size}, [[7, 0], [7, 5]])
    rows = Datastore(tmp_path, {"vocab_size": vocab_size}).continuations([7], 2, 9)
    assert rows.tolist() == [[0, vocab_size], [5, vocab_size]]
