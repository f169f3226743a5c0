"""The suffix tree against counting by hand, while texts grow, come and go."""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Sequence as Seq
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken.lookup.suffix_tree import SuffixTree

DEPTH = 5
few = st.lists(st.integers(0, 2), max_size=14)
TEXTS = st.lists(few.filter(bool), min_size=1, max_size=6)


def closed(texts: Seq[Seq[int]]) -> list[array[int]]:
    """Texts with a mark of their own after each."""
    return [array("i", [*text, -number]) for number, text in enumerate(texts, 1)]


def phrases(text: Seq[int], starts: range, depth: int) -> Counter[tuple[int, ...]]:
    """How often each phrase of at most `depth` tokens begins at one of the places."""
    return Counter(
        tuple(text[start:end])
        for start in starts
        for end in range(start + 1, min(start + depth, len(text)) + 1)
    )


def counted(tree: SuffixTree) -> Counter[tuple[int, ...]]:
    """All phrases of a tree with their counts, by walking it token by token."""
    found: Counter[tuple[int, ...]] = Counter()
    waiting: list[tuple[tuple[int, ...], object]] = [((), tree.find(array("i")))]
    while waiting:
        phrase, place = waiting.pop()
        for share, token, below in tree.following(place):  # type: ignore[arg-type]
            longer = (*phrase, token)
            assert tree.find(array("i", longer)) == below
            found[longer] = tree._counts[below[0]]
            assert share == pytest.approx(found[longer] / tree._counts[place[0]])  # type: ignore[index]
            waiting.append((longer, below))
    return found


def below(tree: SuffixTree) -> list[int]:
    """All nodes but the root."""
    found = list(tree._children[0].values())
    for node in found:
        found.extend(tree._children[node].values())
    assert len(found) + 1 == tree.nodes
    return found


def whole(tree: SuffixTree, held: Seq[array[int]]) -> bool:
    """Whether runs are as long as they can be, and point into texts that are there."""
    nodes = below(tree)
    inside = all(any(tree._texts[node] is text for text in held) for node in nodes)
    return inside and all(len(tree._children[node]) != 1 for node in nodes)


def by_hand(texts: Seq[array[int]]) -> Counter[tuple[int, ...]]:
    every: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        every += phrases(text[:-1], range(len(text) - 1), DEPTH)
    return every


@given(TEXTS, st.integers(0, 6))
def test_texts_come_and_go(texts: list[list[int]], kept: int) -> None:
    """Counts are those of the texts that are there, however many were there before."""
    tree, held = SuffixTree(DEPTH), []
    for text in closed(texts):
        if len(held) > kept:
            tree.drop(held[0], 0, len(held.pop(0)))
        tree.add(text, 0, len(text))
        held.append(text)
        assert counted(tree) == by_hand(held)
        assert tree.nodes <= 1 + 2 * sum(map(len, held))
        assert whole(tree, held)
    for text in [*held]:
        tree.drop(held[0], 0, len(held.pop(0)))
        assert counted(tree) == by_hand(held), text
        assert whole(tree, held)
    assert tree.nodes == 1 and not any(map(len, tree._texts))


@given(TEXTS, st.integers(1, 5), st.integers(0, 9))
def test_texts_come_and_go_in_slices(texts: list[list[int]], size: int, kept: int) -> None:
    """Counts are those of the places that are there."""
    tree = SuffixTree(DEPTH)
    places = [(text, place) for text in closed(texts) for place in range(len(text))]
    there: list[tuple[array[int], int]] = []
    for at in range(0, len(places), size):
        there += places[at : at + size]
        for text, place in places[at : at + size]:
            tree.add(text, place, place + 1)
        while len(there) > kept:
            text, place = there.pop(0)
            tree.drop(text, place, place + 1)
        expected: Counter[tuple[int, ...]] = Counter()
        for text, place in there:
            if place < len(text) - 1:
                expected += phrases(text[:-1], range(place, place + 1), DEPTH)
        assert counted(tree) == expected


@given(few, st.lists(st.integers(1, 4)))
def test_a_text_that_grows(text: list[int], cuts: list[int]) -> None:
    """A suffix counts once it occurs nowhere before it, or has the tree's depth; however it is
    handed over."""
    tree, at = SuffixTree(DEPTH), 0
    for size in [*cuts, len(text)]:
        tree.grow(text[at : at + size])
        at = min(at + size, len(text))
        done = 0
        while done < at and not _stands_before(text[:at], done):
            done += 1
        assert (tree.read, tree.repeated) == (at, at - done)
        assert counted(tree) == phrases(text[:at], range(done), DEPTH)
        assert whole(tree, [tree._text])


def _stands_before(text: list[int], start: int) -> bool:
    """Whether the suffix is shorter than the depth and occurs at an earlier place."""
    suffix = text[start:]
    return len(suffix) < DEPTH and any(
        text[early : early + len(suffix)] == suffix for early in range(start)
    )


@given(TEXTS, few)
def test_the_longest_known_end(texts: list[list[int]], tail: list[int]) -> None:
    """Found by halving, it is what trying every length finds."""
    tree = SuffixTree(DEPTH)
    for text in closed(texts):
        tree.add(text, 0, len(text))
    known = by_hand(closed(texts))
    lengths = [n for n in range(1, min(DEPTH, len(tail) + 1)) if tuple(tail[-n:]) in known]
    assert tree.longest(array("i", tail)) == max(lengths, default=0)


def test_the_collector_has_little_to_visit() -> None:
    """A node is no object: a full collection, which visits all that there are, holds up a step."""
    tree, random = SuffixTree(16), Random(0)
    text = array("i", [*random.choices(range(50), k=4_000), -1])
    gc.collect()
    before = len(gc.get_objects())
    tree.add(text, 0, len(text))
    gc.collect()
    assert tree.nodes > 4_000 and len(gc.get_objects()) - before < tree.nodes / 2


def test_nothing_is_left_after_clear() -> None:
    """A cleared tree is a new one, its growing text too."""
    tree = SuffixTree(3)
    tree.grow([1, 2, 1])
    tree.clear()
    assert (tree.nodes, tree.read, tree.repeated) == (1, 0, 0)
    tree.grow([1, 2, 1])
    assert counted(tree) == phrases([1, 2, 1], range(2), 3)
