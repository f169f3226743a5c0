"""The memory of earlier texts: never above its bound, oldest out first, saved and loaded."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError
from foretoken.drafters.prompt_lookup import _NGrams
from foretoken.files import write_arrays
from foretoken.lookup.earlier_outputs import AT_ONCE, EarlierTexts, Slices
from foretoken.lookup.suffix_tree import SuffixTree

INDEXES: dict[str, Callable[[], Any]] = {
    "tree": lambda: SuffixTree(5),
    "n-grams": lambda: _NGrams(range(3, 0, -1)),
}
SIZE: dict[str, Callable[[Any], int]] = {
    "tree": lambda tree: tree.nodes - 1,
    "n-grams": lambda grams: len(grams.places),
}
PER_TOKEN = {"tree": 4, "n-grams": 3}  # at most two nodes for a token, and for a mark
each = pytest.mark.parametrize("name", INDEXES)
TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=12)


class Listed:
    """An index that only writes down what it holds."""

    def __init__(self) -> None:
        self.places: list[tuple[array[int], int]] = []
        self.most = 0  # at a time

    @property
    def texts(self) -> list[array[int]]:
        """Those of which anything is there."""
        return [text for text, place in self.places if place == len(text) - 1]

    def add(self, text: array[int], start: int, stop: int) -> None:
        self.places += [(text, place) for place in range(start, stop)]
        self.most = max(self.most, stop - start)

    def drop(self, text: array[int], start: int, stop: int) -> None:
        for place in range(start, stop):
            held, at = self.places.pop(0)
            assert held is text and at == place
        self.most = max(self.most, stop - start)

    def clear(self) -> None:
        self.places.clear()


@given(TEXTS, st.integers(1, 20))
def test_the_latest_texts_stay(texts: list[list[int]], limit: int) -> None:
    """As many of the latest as fit, whole; only a text that alone is too long is cut."""
    memory = EarlierTexts(Listed(), limit, 4)
    for number, text in enumerate(texts, 1):
        memory.add(text)
        expected: list[list[int]] = []
        room = limit
        for late in filter(None, reversed(texts[:number])):
            late = late[-limit:]
            if len(late) > room:
                break
            expected.insert(0, late)
            room -= len(late)
        assert [list(held[:-1]) for held in memory.index.texts] == expected
        assert memory.tokens == limit - room
        marks = [held[-1] for held in memory.index.texts]
        assert all(mark < 0 for mark in marks) and len(set(marks)) == len(marks)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=12), st.booleans())))
def test_texts_wait_for_the_index(texts: list[tuple[list[int], bool]]) -> None:
    """However seldom it is asked for, it has what it would have had, in the same order."""
    seldom, often = EarlierTexts(Listed(), 20, 4), EarlierTexts(Listed(), 20, 4)
    for text, asked in texts:
        seldom.add(text)
        often.add(text)
        expected = often.index.texts
        if asked:
            assert seldom.index.texts == expected
    assert seldom.index.texts == often.index.texts and seldom.tokens == often.tokens


def test_the_index_takes_in_a_little_at_a_time() -> None:
    """Many texts that ended while nobody asked don't hold up the step that asks."""
    memory = EarlierTexts(Listed(), 10_000, 4)
    for _ in range(30):
        memory.add([1] * 99)
    sizes = [len(memory.index.texts) for _ in range(6)]
    assert sizes == [5, 10, 15, 20, 25, 30]
    memory.add([1] * 5_000)
    steps = [len(memory.index.texts) for _ in range(10)]
    assert steps == [30] * 9 + [31] and memory.index.most == AT_ONCE


def test_a_long_text_leaves_as_it_came() -> None:
    """Some places at a time, and before anything new enters; nothing of one that never entered."""
    memory = EarlierTexts(Listed(), 2_000, 4)
    memory.add([1] * 2_000)
    held = [len(memory.index.places) for _ in range(3)]
    memory.add([2] * 2_000)  # the first one has been taken in as far as the third slice
    memory.add([3] * 2_000)
    held += [len(memory.index.places) for _ in range(7)]
    assert held == [512, 1024, 1536, 1024, 512, 0, 512, 1024, 1536, 2001]
    assert {text[0] for text in memory.index.texts} == {3}
    memory.add([4] * 2_000)  # the third one is about to leave
    memory.reset()
    assert not memory.index.places and memory.tokens == 0
    memory.add([5])
    assert [text[0] for text in memory.index.texts] == [5]


@given(st.lists(st.integers(1, 9), max_size=5), st.lists(st.integers(1, 7), max_size=12))
def test_slices(lengths: list[int], rooms: list[int]) -> None:
    """Each place once, in order, as many at a time as there is room for."""
    done = list[tuple[int, int]]()
    slices = Slices(lambda text, start, stop: done.extend((text[0], p) for p in range(start, stop)))
    expected = [(number, place) for number, size in enumerate(lengths) for place in range(size)]
    for number, size in enumerate(lengths):
        slices.put(array("i", [number]), size)
    for room in rooms:
        before = len(done)
        assert slices.do(room) == room - (len(done) - before)
        assert len(done) == min(before + room, len(expected))
    assert done == expected[: len(done)] and (len(slices) == 0) == (len(done) == len(expected))


@each
@given(texts=TEXTS)
def test_the_index_is_bounded(name: str, texts: list[list[int]]) -> None:
    """At the bound the index has dropped what the memory has, and is empty after a reset."""
    memory = EarlierTexts(INDEXES[name](), 10, 4)
    for text in texts:
        memory.add(text)
        assert SIZE[name](memory.index) <= PER_TOKEN[name] * memory.tokens <= 10 * PER_TOKEN[name]
    memory.reset()
    assert SIZE[name](memory.index) == memory.tokens == 0
    memory.add([1, 2, 3])
    assert memory.tokens == 3


def test_n_grams_of_dropped_texts_go() -> None:
    """What a later text has too stays, with the later text's place."""
    grams = _NGrams(range(2, 0, -1))
    first, second = array("i", [1, 2, 3, -1]), array("i", [5, 2, 3, -2])
    grams.add(first, 0, 2)
    grams.add(first, 2, 4)
    grams.add(second, 0, 4)
    assert grams.places[(2,)] == (second, 2) and (1, 2) in grams.places and (3,) not in grams.places
    grams.drop(first, 0, 1)
    grams.drop(first, 1, 4)
    assert set(grams.places) == {(5,), (2,), (5, 2)}
    assert Counter(id(text) for text, _ in grams.places.values()) == {id(second): 3}


def test_a_large_memory_takes_what_the_page_says() -> None:
    """Nodes and n-grams per token at a bound of 2,000 tokens of mixed text."""
    random = np.random.default_rng(0)
    texts = [random.zipf(1.5, 300).clip(max=90).tolist() for _ in range(20)]
    texts += [[*texts[i], *texts[i + 1][:200]] for i in range(0, 18, 3)]
    for name, make in INDEXES.items():
        memory = EarlierTexts(make(), 2000, 97)
        for text in texts:
            memory.add(text)
            assert memory.tokens <= 2000
            assert SIZE[name](memory.index) <= PER_TOKEN[name] * 2000


@each
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """Texts come back in their order; another vocabulary's or a broken file changes nothing."""
    path = tmp_path / "memory"
    memory = EarlierTexts(INDEXES[name](), 8, 4)
    for text in ([1, 2, 3], [], [3, 3, 1, 2], [0]):
        memory.add(text)
    memory.save(path)
    other = EarlierTexts(Listed(), 5, 4)
    other.add([2])
    other.load(path)  # into a smaller memory: the latest that fit
    assert [list(text[:-1]) for text in other.index.texts] == [[3, 3, 1, 2], [0]]
    roomy = EarlierTexts(Listed(), 50, 4)
    roomy.add([2])
    roomy.load(path)  # in place of what was there
    assert [len(text) - 1 for text in roomy.index.texts] == [3, 4, 1]
    same = EarlierTexts(INDEXES[name](), 8, 4)
    same.load(path)
    assert (same.tokens, SIZE[name](same.index)) == (8, SIZE[name](memory.index))
    with pytest.raises(ForetokenError, match="made for vocab_size 4 and this target has 5"):
        EarlierTexts(Listed(), 8, 5).load(path)
    for tokens, lengths in (([4], [1]), ([-1], [1]), ([1, 2], [1]), ([], [2])):
        arrays = {"tokens": np.array(tokens, int), "lengths": np.array(lengths)}
        write_arrays(path, "memory of earlier texts", {"vocab_size": 4}, arrays)
        with pytest.raises(ForetokenError, match="don't fit together"):
            same.load(path)
        assert same.tokens == 8


def test_a_bound_of_nothing() -> None:
    """A memory that can hold nothing is a mistake."""
    with pytest.raises(ForetokenError, match="max_cached_tokens is 0; it must be at least 1"):
        EarlierTexts(Listed(), 0, 4)
