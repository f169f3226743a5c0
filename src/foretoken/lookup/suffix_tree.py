"""A suffix tree with counts: which tokens followed a phrase, and how often.

Source: Oliaro et al. 2025 (SuffixDecoding), section 4. The tree holds every suffix of its texts up
to `depth` tokens; an edge stands for a run of tokens and points into a text. It has at most two
nodes for each token. It is filled in two ways:

- `grow`: one text, as it is written, after the whole ones if the tree has any. A suffix is counted
  once it differs from all earlier ones, or is `depth` long; until then it is part of the tail that
  `repeated` measures.
- `add` and `drop`: whole texts, place by place, first in, first out. A text ends in a mark, a
  negative number that occurs only there, so that every suffix of it differs from all others in the
  end.

A walk adds or drops a suffix; it visits only the branchings on its path.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

Place = tuple["_Node", int]
"""A node, and how many tokens of the run that leads to it have been read."""


class _Node:
    """The run text[start : start + length] leads here; a leaf's ends where its text does."""

    __slots__ = ("children", "count", "length", "start", "text")

    def __init__(self, text: array[int], start: int, length: int, count: int) -> None:
        self.text, self.start, self.length, self.count = text, start, length, count
        self.children = _NONE


_NONE: dict[int, _Node] = {}  # of every leaf, never written


class SuffixTree:
    """Suffixes of at most `depth` tokens and how often each of their prefixes occurs."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        """Forget all texts."""
        self._root = _Node(array("i"), 0, 0, 0)
        self._root.children = {}
        self._text = array("i")
        self._start = 0  # of the first suffix of the growing text that isn't counted yet

    def grow(self, tokens: Iterable[int]) -> None:
        """Append to the text that is being written."""
        self._text.extend(tokens)
        while self._start < len(self._text) and self._insert(self._text, self._start):
            self._start += 1

    @property
    def read(self) -> int:
        """How much of the growing text has been read."""
        return len(self._text)

    @property
    def repeated(self) -> int:
        """How many tokens at the end of the growing text occurred before, there or in a whole
        text, as a phrase."""
        return len(self._text) - self._start

    def add(self, text: array[int], start: int, stop: int) -> None:
        """Count the suffixes that begin at these places of a text that ends in its own mark."""
        for place in range(start, min(stop, len(text) - 1)):
            self._insert(text, place)

    def drop(self, text: array[int], start: int, stop: int) -> None:
        """Undo `add` for the oldest text: nodes that others share with it point into the others."""
        for place in range(start, min(stop, len(text) - 1)):
            self._remove(text, place)

    def _insert(self, text: array[int], start: int) -> bool:
        """Count one suffix; False, and nothing is counted, while it is part of another."""
        stop = min(start + self.depth, len(text))
        node, at = self._root, start
        path: list[tuple[_Node, int]] = []
        while at < stop:
            child = node.children.get(text[at])
            if child is None:
                node.children[text[at]] = _Node(text, at, start + self.depth - at, 1)
                break
            common = _common(child, text, at, stop)
            if common < child.length:
                if at + common == stop:
                    return False
                child = _split(node, child, common)
            path.append((child, at))
            at += child.length
            node = child
        else:
            if stop < start + self.depth:
                return False
        self._root.count += 1
        for passed, where in path:
            passed.count += 1
            passed.text, passed.start = text, where  # the youngest text is dropped last
        return True

    def _remove(self, text: array[int], start: int) -> None:
        node, at = self._root, start
        stop = min(start + self.depth, len(text))
        node.count -= 1
        while at < stop:
            child = node.children[text[at]]
            child.count -= 1
            if not child.count:
                del node.children[text[at]]
                if len(node.children) == 1 and node is not self._root:
                    _join(node)
                return
            at += child.length
            node = child

    def find(self, phrase: array[int]) -> Place | None:
        """Where the phrase leads, or None where it never occurred."""
        node, at, inside = self._root, 0, 0
        while at < len(phrase):
            child = node.children.get(phrase[at])
            if child is None:
                return None
            inside = min(child.length, len(phrase) - at)
            if child.text[child.start : child.start + inside] != phrase[at : at + inside]:
                return None
            at += inside
            node = child
        return node, inside

    def longest(self, tail: array[int]) -> int:
        """How many tokens at the end of `tail` occur in the tree as a phrase, below `depth`."""
        low, high = 0, min(len(tail), self.depth - 1)
        while low < high:  # if a phrase occurs, so does its suffix
            middle = (low + high + 1) // 2
            if self.find(tail[len(tail) - middle :]) is None:
                high = middle - 1
            else:
                low = middle
        return low

    def following(self, place: Place) -> Iterator[tuple[float, int, Place]]:
        """(share, token, place) of what came next; a text's end has a share too, which is not
        listed."""
        node, inside = place
        if inside < node.length:
            at = node.start + inside
            if at < len(node.text) and node.text[at] >= 0:
                yield 1.0, node.text[at], (node, inside + 1)
            return
        for token, child in node.children.items():
            if token >= 0:
                yield child.count / node.count, token, (child, 1)

    @property
    def nodes(self) -> int:
        """The number of nodes, counted by walking over them."""
        waiting, count = [self._root], 0
        while waiting:
            node = waiting.pop()
            count += 1
            waiting.extend(node.children.values())
        return count


def _common(child: _Node, text: array[int], at: int, stop: int) -> int:
    """How many tokens of the child's run stand at `at` as well."""
    size = min(child.length, stop - at)
    mine, its = text[at : at + size], child.text[child.start : child.start + size]
    if mine == its:
        return size
    return next(i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b)


def _split(node: _Node, child: _Node, at: int) -> _Node:
    """A node in the middle of the run that leads to a child."""
    upper = _Node(child.text, child.start, at, child.count)
    upper.children = {child.text[child.start + at]: child}
    child.start += at
    child.length -= at
    node.children[upper.text[upper.start]] = upper
    return upper


def _join(node: _Node) -> None:
    """A node and its only child are one run; in the child's text the node's stands before it."""
    [child] = node.children.values()
    node.text, node.start = child.text, child.start - node.length
    node.length += child.length
    node.children = child.children
