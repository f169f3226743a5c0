"""Earlier outputs: the latest texts of all requests, indexed, up to a number of tokens.

This is a copying drafter's `shared` memory. Whole texts are added, and the oldest ones are dropped
first; how phrases are looked up in them is up to the index. A text enters the index, and a
forgotten one leaves it, when it is next used, so that a drafter that is not queried costs nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays

_KIND = "memory of earlier texts"
AT_ONCE = 512
"""Tokens that enter an index, or leave it, at a time, so that no step is long."""


class Index(Protocol):
    """Looks up phrases in texts. A text ends in a mark: a negative number that occurs only
    there. Places are added in their order, and dropped in the same order."""

    def add(self, text: array[int], start: int, stop: int) -> None:
        """Take these places of a text in."""
        ...

    def drop(self, text: array[int], start: int, stop: int) -> None:
        """Take these places of the oldest text out."""
        ...

    def clear(self) -> None: ...


class Slices:
    """Texts whose places are worked through in turn, some at a time."""

    def __init__(self, work: Callable[[array[int], int, int], None]) -> None:
        """work: takes a text and a range of its places."""
        self._work = work
        self._texts: deque[tuple[array[int], int]] = deque()  # with how many places each
        self._done = 0  # places of the first one

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, text: array[int], places: int) -> None:
        """The first `places` of a text come last."""
        self._texts.append((text, places))

    def do(self, most: int) -> int:
        """Work through `most` places, or all that there are; returns how many there were fewer."""
        while most > 0 and self._texts:
            text, places = self._texts[0]
            stop = min(places, self._done + most)
            self._work(text, self._done, stop)
            most -= stop - self._done
            self._done = stop
            if stop == places:
                self.drop()
        return most

    def drop(self) -> int:
        """Leave out the first text; how many of its places were worked through."""
        self._texts.popleft()
        done, self._done = self._done, 0
        return done

    def clear(self) -> None:
        """Leave out all texts."""
        self._texts.clear()
        self._done = 0


IndexT = TypeVar("IndexT", bound=Index)


class EarlierTexts(Generic[IndexT]):
    """The latest texts, at most `limit` tokens of them; of a longer text its end."""

    def __init__(self, index: IndexT, limit: int, vocab_size: int) -> None:
        if limit < 1:
            raise ForetokenError(f"max_cached_tokens is {limit}; it must be at least 1.")
        self._index, self.limit, self._vocab_size = index, limit, vocab_size
        self._texts: deque[array[int]] = deque()
        self._entering = Slices(index.add)  # the latest texts
        self._leaving = Slices(index.drop)  # forgotten ones, as far as they are in the index
        self._marks = self.tokens = 0

    @property
    def index(self) -> IndexT:
        """The index, after some of the work that has gathered. What is forgotten leaves it before
        anything new enters, so that it never holds more than the limit."""
        self._entering.do(self._leaving.do(AT_ONCE))
        return self._index

    def add(self, tokens: Seq[int]) -> None:
        """Remember a text and forget the oldest ones that there is no room for."""
        text = array("i", tokens[-self.limit :])
        if not text:
            return
        while self.tokens + len(text) > self.limit:
            whole = len(self._texts) > len(self._entering)
            oldest = self._texts.popleft()
            inside = len(oldest) if whole else self._entering.drop()
            if inside:
                self._leaving.put(oldest, inside)
            self.tokens -= len(oldest) - 1
        self.tokens += len(text)
        self._marks += 1
        text.append(-self._marks)
        self._texts.append(text)
        self._entering.put(text, len(text))

    def reset(self) -> None:
        """Forget everything."""
        self._texts.clear()
        self._entering.clear()
        self._leaving.clear()
        self._index.clear()
        self.tokens = 0

    def save(self, path: str | Path) -> None:
        """Write the texts to a file; loading them builds the index again."""
        tokens = [np.array(text[:-1], np.int32) for text in self._texts]
        arrays = {
            "tokens": np.concatenate([np.empty(0, np.int32), *tokens]),
            "lengths": np.array([len(text) for text in tokens], np.int64),
        }
        write_arrays(path, _KIND, self._made_for, arrays)

    def load(self, path: str | Path) -> None:
        """Replace the texts by those of a file.

        Raises `ForetokenError` for a damaged file, or one of another vocabulary.
        """
        arrays = read_arrays(path, _KIND, self._made_for, ("tokens", "lengths"))
        tokens, ends = arrays["tokens"].tolist(), arrays["lengths"].cumsum().tolist()
        inside = all(0 <= token < self._vocab_size for token in tokens)
        if not inside or (ends[-1] if ends else 0) != len(tokens):
            raise ForetokenError(f"{path} is damaged: its texts don't fit together; make it again.")
        self.reset()
        for start, end in zip([0, *ends], ends, strict=False):
            self.add(tokens[start:end])

    @property
    def _made_for(self) -> dict[str, int | str]:
        return {"vocab_size": self._vocab_size}
