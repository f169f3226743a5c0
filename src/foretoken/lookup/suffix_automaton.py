"""Suffix automata: the longest suffix of a text that occurred before, in O(1) a token.

A state stands for all phrases that end at the same places; `length` is that of the longest of them
and `link` leads to its longest suffix that ends at more places. Construction: Blumer et al. 1985;
for drafting: Hu et al. 2025 (SAM-Decoding), section 3. A text of n tokens has fewer than 2n states
and 3n transitions.

`SuffixAutomaton` grows with a text, which whole ones may stand before, each with a negative mark at
its end. `StaticAutomaton` is one in arrays (at most 60 bytes a token): it counts occurrences, is
matched against other texts, and can be saved.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import chain
from pathlib import Path

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import Arrays, read_arrays, write_arrays
from foretoken.lookup.longest_match import repeated, unmarked

Match = tuple[int, int]
"""A state, and how many tokens of its longest phrase match."""

START: Match = (0, 0)
_KIND = "suffix automaton"


class SuffixAutomaton:
    """The automaton of one text, as it is written. text: with what stands before it."""

    def __init__(self) -> None:
        self.text = array("i")
        self.next: list[dict[int, int]] = [{}]
        self.link = array("i", [-1])
        self.length = array("i", [0])
        self.first_end = array("i", [-1])  # where the state's phrases first ended
        self._last = 0

    @classmethod
    def after_texts(cls, texts: Iterable[Seq[int]]) -> SuffixAutomaton:
        """One whose text is yet to be written, after these."""
        growing = cls()
        for mark, text in enumerate(texts, 1):
            growing.extend(text)
            growing.extend((-mark,))
        return growing

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        following, link = self.next, self.link
        new = self._state({}, len(self.text) + 1, len(self.text))
        self.text.append(token)
        state = self._last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        self._last = new
        link[new] = self._suffix(state, token) if state >= 0 else 0

    def _suffix(self, state: int, token: int) -> int:
        """The state of the longest phrase of `state`, and `token` after it."""
        following, link, length = self.next, self.link, self.length
        target = following[state][token]
        if length[target] == length[state] + 1:
            return target
        # The target's longer phrases don't end here: split the shorter ones off.
        shorter = self._state(
            following[target].copy(), length[state] + 1, self.first_end[target], link[target]
        )
        link[target] = shorter
        while state >= 0 and following[state].get(token) == target:
            following[state][token] = shorter
            state = link[state]
        return shorter

    def _state(self, following: dict[int, int], length: int, end: int, link: int = -1) -> int:
        self.next.append(following)
        self.length.append(length)
        self.first_end.append(end)
        self.link.append(link)
        return len(self.next) - 1

    @property
    def repeat(self) -> tuple[int, int]:
        """The longest suffix of the text that occurred before: its length, and the place after its
        first occurrence. (0, 0) where there is none."""
        state = max(0, self.link[self._last])
        return self.length[state], self.first_end[state] + 1

    def after(self, start: int, most: int) -> list[int]:
        """At most `most` tokens of `text` from a place on, to the end of that text, or of the one
        that is still written as `repeated` has it."""
        return unmarked(repeated(self.text, start, most))


_NAMES = ("text", "link", "length", "first_end", "count", "offsets", "tokens", "targets")


class StaticAutomaton:
    """The automaton of whole texts, joined, each with a negative mark at its end.

    text: all tokens. For each state: link, length, first_end, count (occurrences), and its
    transitions tokens[offsets[s] : offsets[s + 1]], sorted, with the states they lead to.
    """

    def __init__(self, arrays: Arrays) -> None:
        """`of` and `load` make these."""
        self._arrays = {name: np.ascontiguousarray(arrays[name], np.int32) for name in _NAMES}
        views = (self._arrays[name].data for name in _NAMES)  # indexed ten times as fast
        self.text, self._link, self._length, self._first_end, *rest = views
        self._count, self._offsets, self._tokens, self._targets = rest

    @classmethod
    def of(cls, texts: Iterable[Seq[int]]) -> StaticAutomaton:
        """Build one, which takes about 1 KB a token while it is built."""
        return cls(_arrays(SuffixAutomaton.after_texts(texts)))

    def step(self, match: Match, token: int) -> Match:
        """The longest suffix of the matched phrase and `token` that occurs in the texts."""
        state, length = match
        while True:
            low, high = self._offsets[state], self._offsets[state + 1]
            at = bisect_left(self._tokens, token, low, high)
            if at < high and self._tokens[at] == token:
                return self._targets[at], length + 1
            if state == 0:
                return START
            state = self._link[state]
            length = self._length[state]

    def count(self, match: Match) -> int:
        """How often the matched phrase occurs."""
        return self._count[match[0]]

    def first(self, match: Match) -> int:
        """The place in `text` after the phrase's first occurrence."""
        return self._first_end[match[0]] + 1

    def after(self, start: int, most: int) -> list[int]:
        """At most `most` tokens of `text` from a place on, to the end of that text."""
        return unmarked(self.text[start : start + most].tolist())

    def following(self, state: int) -> Iterator[tuple[float, int, int]]:
        """(share, token, state) of what comes after a state's phrases."""
        count = self._count[state]
        for at in range(self._offsets[state], self._offsets[state + 1]):
            if self._tokens[at] >= 0:
                target = self._targets[at]
                yield self._count[target] / count, self._tokens[at], target

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def check(self, vocab_size: int) -> None:
        """Raise `ForetokenError` where a token is outside a vocabulary."""
        largest = int(self._arrays["text"].max(initial=-1))
        if largest >= vocab_size:
            raise ForetokenError(
                f"The corpus has token id {largest} and the target's vocabulary {vocab_size} "
                "tokens; tokenize the texts with the target's tokenizer."
            )

    def save(self, path: str | Path, vocab_size: int) -> None:
        """Write it for targets with a vocabulary of this size."""
        write_arrays(path, _KIND, {"vocab_size": vocab_size}, self._arrays)

    @classmethod
    def load(cls, path: str | Path, vocab_size: int) -> StaticAutomaton:
        """Raises `ForetokenError` for a damaged file, or one of another vocabulary."""
        automaton = cls(read_arrays(path, _KIND, {"vocab_size": vocab_size}, _NAMES))
        automaton.check(vocab_size)
        return automaton


def _arrays(growing: SuffixAutomaton) -> Arrays:
    edges = [sorted(following.items()) for following in growing.next]
    pairs = np.array(list(chain.from_iterable(edges)), np.int32).reshape(-1, 2)
    length, end = np.array(growing.length), np.array(growing.first_end)
    link = np.array(growing.link)
    return {
        "text": np.array(growing.text),
        "link": link,
        "length": length,
        "first_end": end,
        "count": _counts(link, length, end),
        "tokens": pairs[:, 0],
        "targets": pairs[:, 1],
        "offsets": np.cumsum([0, *map(len, edges)]),
    }


def _counts(link: np.ndarray, length: np.ndarray, end: np.ndarray) -> np.ndarray:
    """[states] how often each state's phrases occur: once for each prefix of a text that ends in
    them; those prefixes are the states that were not split off from another."""
    count = ((length == end + 1) & (length > 0)).astype(np.int64).tolist()
    links = link.tolist()
    for state in np.argsort(-length, kind="stable").tolist():
        if links[state] >= 0:
            count[links[state]] += count[state]
    return np.array(count)
