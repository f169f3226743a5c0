"""Earlier outputs: the latest texts of all requests, indexed, up to a number of tokens.

This is a copying drafter's `shared` memory. Whole texts are added, and the oldest ones are dropped
first; how phrases are looked up in them is up to the index. A text enters the index when it is next
used, so that a drafter that is not queried costs nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence as Seq
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays

_KIND = "memory of earlier texts"
_AT_ONCE = 512  # tokens (or one text) that enter the index at a time, so that no step is long


class Index(Protocol):
    """Looks up phrases in texts. A text ends in a mark: a negative number that occurs only
    there."""

    def add(self, text: array[int]) -> None: ...

    def drop(self, text: array[int]) -> None:
        """Take the oldest text out."""
        ...

    def clear(self) -> None: ...


IndexT = TypeVar("IndexT", bound=Index)


class EarlierTexts(Generic[IndexT]):
    """The latest texts, at most `limit` tokens of them; of a longer text its end."""

    def __init__(self, index: IndexT, limit: int, vocab_size: int) -> None:
        if limit < 1:
            raise ForetokenError(f"max_cached_tokens is {limit}; it must be at least 1.")
        self._index, self.limit, self._vocab_size = index, limit, vocab_size
        self._texts: deque[array[int]] = deque()
        self._waiting = 0  # how many of the latest texts are not yet in the index
        self._marks = self.tokens = 0

    @property
    def index(self) -> IndexT:
        """The index, with some of the texts added that were not yet in it."""
        taken, first = 0, len(self._texts) - self._waiting
        for text in islice(self._texts, first, None) if self._waiting else ():
            self._index.add(text)
            self._waiting -= 1
            taken += len(text)
            if taken >= _AT_ONCE:
                break
        return self._index

    def add(self, tokens: Seq[int]) -> None:
        """Remember a text and forget the oldest ones that there is no room for."""
        text = array("i", tokens[-self.limit :])
        if not text:
            return
        while self.tokens + len(text) > self.limit:
            if len(self._texts) > self._waiting:
                self._index.drop(self._texts[0])
            else:
                self._waiting -= 1
            oldest = self._texts.popleft()
            self.tokens -= len(oldest) - 1
        self.tokens += len(text)
        self._marks += 1
        text.append(-self._marks)
        self._texts.append(text)
        self._waiting += 1

    def reset(self) -> None:
        """Forget everything."""
        self._texts.clear()
        self._index.clear()
        self._waiting = self.tokens = 0

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
