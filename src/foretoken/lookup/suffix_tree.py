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

A walk adds or drops a suffix; it visits only the branchings on its path. A node is a number, by
which lists say what is known of it: objects would be hundreds of thousands, each of which Python's
collector visits whenever it visits all.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

Place = tuple[int, int]
"""A node, and how many tokens of the run that leads to it have been read."""

_ROOT = 0
_NO_TEXT = array("i")
_NO_CHILDREN: dict[int, int] = {}  # of every leaf, never written


class SuffixTree:
    """Suffixes of at most `depth` tokens and how often each of their prefixes occurs."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        """Forget all texts."""
        self._text = array("i")
        self._start = 0  # of the first suffix of the growing text that isn't counted yet
        # Of each node: the run text[start : start + length] leads there; a leaf's ends where its
        # text does. Children are by the first tokens of their runs.
        self._texts: list[array[int]] = [_NO_TEXT]
        self._starts, self._lengths, self._counts = [0], [0], [0]
        self._children: list[dict[int, int]] = [{}]
        self._free: list[int] = []  # numbers of nodes that are gone

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
        children, lengths = self._children, self._lengths
        stop = min(start + self.depth, len(text))
        node, at = _ROOT, start
        path: list[tuple[int, int]] = []
        while at < stop:
            child = children[node].get(text[at])
            if child is None:
                children[node][text[at]] = self._new(text, at, start + self.depth - at, 1)
                break
            common = self._common(child, text, at, stop)
            if common < lengths[child]:
                if at + common == stop:
                    return False
                child = self._split(node, child, common)
            path.append((child, at))
            at += lengths[child]
            node = child
        else:
            if stop < start + self.depth:
                return False
        texts, starts, counts = self._texts, self._starts, self._counts
        counts[_ROOT] += 1
        for passed, where in path:
            counts[passed] += 1
            texts[passed], starts[passed] = text, where  # the youngest text is dropped last
        return True

    def _remove(self, text: array[int], start: int) -> None:
        children, lengths, counts = self._children, self._lengths, self._counts
        node, at = _ROOT, start
        stop = min(start + self.depth, len(text))
        counts[_ROOT] -= 1
        while at < stop:
            child = children[node][text[at]]
            counts[child] -= 1
            if not counts[child]:
                del children[node][text[at]]
                self._forget(child)
                if len(children[node]) == 1 and node != _ROOT:
                    self._join(node)
                return
            at += lengths[child]
            node = child

    def _new(self, text: array[int], start: int, length: int, count: int) -> int:
        """A node without children."""
        if self._free:
            node = self._free.pop()
            self._texts[node], self._starts[node] = text, start
            self._lengths[node], self._counts[node] = length, count
            return node
        self._texts.append(text)
        self._starts.append(start)
        self._lengths.append(length)
        self._counts.append(count)
        self._children.append(_NO_CHILDREN)
        return len(self._texts) - 1

    def _forget(self, node: int) -> None:
        """One that nothing leads to any more."""
        self._texts[node], self._children[node] = _NO_TEXT, _NO_CHILDREN
        self._free.append(node)

    def _common(self, child: int, text: array[int], at: int, stop: int) -> int:
        """How many tokens of the child's run stand at `at` as well."""
        size, start = min(self._lengths[child], stop - at), self._starts[child]
        mine, its = text[at : at + size], self._texts[child][start : start + size]
        if mine == its:
            return size
        return next(i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b)

    def _split(self, node: int, child: int, at: int) -> int:
        """A node in the middle of the run that leads to a child."""
        text, start = self._texts[child], self._starts[child]
        upper = self._new(text, start, at, self._counts[child])
        self._children[upper] = {text[start + at]: child}
        self._starts[child] += at
        self._lengths[child] -= at
        self._children[node][text[start]] = upper
        return upper

    def _join(self, node: int) -> None:
        """A node and its only child are one run; in the child's text the node's stands before
        it."""
        [child] = self._children[node].values()
        self._texts[node] = self._texts[child]
        self._starts[node] = self._starts[child] - self._lengths[node]
        self._lengths[node] += self._lengths[child]
        self._children[node] = self._children[child]
        self._forget(child)

    def find(self, phrase: array[int]) -> Place | None:
        """Where the phrase leads, or None where it never occurred."""
        node, at, inside = _ROOT, 0, 0
        while at < len(phrase):
            child = self._children[node].get(phrase[at])
            if child is None:
                return None
            inside = min(self._lengths[child], len(phrase) - at)
            start = self._starts[child]
            if self._texts[child][start : start + inside] != phrase[at : at + inside]:
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
        if inside < self._lengths[node]:
            text, at = self._texts[node], self._starts[node] + inside
            if at < len(text) and text[at] >= 0:
                yield 1.0, text[at], (node, inside + 1)
            return
        for token, child in self._children[node].items():
            if token >= 0:
                yield self._counts[child] / self._counts[node], token, (child, 1)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self._texts) - len(self._free)
