"""Texts on disk in which any phrase can be looked up at once: token ids and their suffix array.

Source: Manber and Myers 1993 (suffix arrays, prefix doubling); He et al. 2024 (REST), section 3.1.
A datastore is a folder. Texts come in segments, each two memory-mapped arrays: the ids, a mark
after each text, and the places in the order of the suffixes there. New texts are new segments, so
the old ones are never sorted again. `index.npz` records what the datastore is for and its segments;
it is written last. Suffixes are ordered by their first `ORDERED` tokens, which is as far as a
lookup reads. Ids are stored with the high byte first: then comparing bytes is comparing phrases.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays

ORDERED = 64
"""The longest phrase that can be looked up, in tokens."""

SEGMENT = 1 << 24
"""Tokens of a segment at most; sorting takes about 50 bytes of memory for each."""

_KIND = "datastore"
_INDEX = "index.npz"
_PARTS = ("tokens", "suffixes")
_READ_AT_ONCE = 1 << 20

MadeFor = Mapping[str, int | str]
"""What a datastore fits: its `vocab_size`, and whatever else must be the same to use it."""


def build(
    folder: str | Path, made_for: MadeFor, documents: Iterable[Seq[int]], *, segment: int = SEGMENT
) -> None:
    """Make a datastore of texts as token ids, in a folder that has none.

    Raises `ForetokenError` for ids outside `made_for["vocab_size"]`, and if there is no text.
    """
    folder = Path(folder)
    if (folder / _INDEX).exists():
        raise ForetokenError(
            f"{folder} holds a datastore already; add to that one or name another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForetokenError(f"{folder} can't be written: {error.strerror}.") from error
    _extend(folder, made_for, documents, np.empty((0, 3), np.int64), segment)


def add(
    folder: str | Path, made_for: MadeFor, documents: Iterable[Seq[int]], *, segment: int = SEGMENT
) -> None:
    """Add texts to a datastore as new segments. What is there is not read or written again.

    Raises `ForetokenError` as `build` does, and for a datastore made for something else.
    """
    _extend(Path(folder), made_for, documents, _index(Path(folder), made_for), segment)


class Datastore:
    """A datastore opened for lookups; every file is read once, to compare its checksum.

    Raises `ForetokenError` for a folder that holds none, or one that is damaged or made for
    something else than `made_for`.
    """

    def __init__(self, folder: str | Path, made_for: MadeFor) -> None:
        folder, self.vocab_size = Path(folder), int(made_for["vocab_size"])
        rows = _index(folder, made_for)
        self._ids = _ids(self.vocab_size)
        self._segments = [_Segment(folder, i, row) for i, row in enumerate(rows.tolist())]

    @property
    def tokens(self) -> int:
        """Tokens of all texts, the marks included."""
        return sum(len(segment.tokens) for segment in self._segments)

    def longest(self, text: Seq[int], shortest: int, longest: int) -> int:
        """The length of the longest suffix of `text`, within these bounds, that occurs; 0 for none.

        Where a phrase occurs its suffixes occur too, so the length is searched by bisection.
        """
        lengths = range(shortest, min(longest, ORDERED, len(text)) + 1)
        coded = self._coded(text[-longest:])
        width = self._ids.itemsize

        def absent(length: int) -> bool:
            return not any(one.has(coded[-length * width :]) for one in self._segments)

        known = bisect_left(lengths, True, key=absent)
        return lengths[known - 1] if known else 0

    def continuations(self, phrase: Seq[int], length: int, most: int) -> NDArray[np.integer]:
        """[M, length] what follows a phrase where it occurs, sorted; M is at most `most`.

        Of more places, evenly spread ones are taken, which keeps the shares of what follows. An id
        that is not below `vocab_size` is no token: the text ends there.
        """
        coded, after = self._coded(phrase), np.arange(length) + len(phrase)
        ranges = [one.places(coded) for one in self._segments]
        total = sum(map(len, ranges))
        picked = np.arange(min(total, most)) * max(total, 1) // max(min(total, most), 1)
        pieces, before = [np.empty((0, length), self._ids.newbyteorder("="))], 0
        for segment, places in zip(self._segments, ranges, strict=True):
            here = picked[(picked >= before) & (picked < before + len(places))] - before
            before += len(places)
            pieces.append(segment.read(places.start + here, after))
        rows = np.concatenate(pieces)
        return rows[np.lexsort(rows.T[::-1])]

    def _coded(self, phrase: Seq[int]) -> bytes:
        return np.array(phrase, self._ids).tobytes()


class _Segment:
    """tokens: ids, high byte first, the last one a mark; suffixes: places in order."""

    def __init__(self, folder: Path, number: int, row: Seq[int]) -> None:
        self.tokens, self._suffixes = (
            _mapped(_file(folder, number, part), row[0], checksum)
            for part, checksum in zip(_PARTS, row[1:], strict=True)
        )
        self._bytes = self.tokens.view(np.uint8).data
        self._width = self.tokens.itemsize

    def has(self, coded: bytes) -> bool:
        at = self._first(coded)
        return at < len(self.tokens) and self._at(at, len(coded)) == coded

    def places(self, coded: bytes) -> range:
        """The part of the suffix array that starts with a phrase."""
        start, everything = self._first(coded), range(len(self.tokens))
        size = len(coded)
        return range(start, bisect_right(everything, coded, start, key=lambda i: self._at(i, size)))

    def read(self, places: NDArray[np.integer], after: NDArray[np.integer]) -> NDArray[np.integer]:
        """[M, len(after)] the tokens at these distances from where the array's places point."""
        at = self._suffixes[places].astype(np.int64)[:, None] + after
        tokens: NDArray[np.integer] = self.tokens[np.minimum(at, len(self.tokens) - 1)]
        return tokens

    def _first(self, coded: bytes) -> int:
        size = len(coded)
        return bisect_left(range(len(self.tokens)), coded, key=lambda i: self._at(i, size))

    def _at(self, place: int, size: int) -> bytes:
        start = int(self._suffixes[place]) * self._width
        return self._bytes[start : start + size].tobytes()


def suffix_array(tokens: NDArray[np.integer], ordered: int = ORDERED) -> NDArray[np.uint32]:
    """The places of `tokens` [T] in the order of the `ordered` tokens from there on.

    Prefix doubling: what is ordered by s tokens is ordered by 2s when the rank s places on decides
    between equals. The end comes before any token.
    """
    ranks = tokens.astype(np.int64) + 1
    order, length = np.argsort(ranks), 1
    while length < ordered:
        after = np.zeros_like(ranks)
        after[:-length] = ranks[length:]
        ranks = ranks * (int(ranks.max()) + 1) + after
        order = np.argsort(ranks)
        new = np.diff(ranks[order], prepend=-1) != 0
        ranks[order] = new.cumsum()
        if new.all():
            break
        length *= 2
    return order.astype(np.uint32)


def _extend(
    folder: Path,
    made_for: MadeFor,
    documents: Iterable[Seq[int]],
    rows: NDArray[np.integer],
    most: int,
) -> None:
    """Write new segments after those of the index, and then the index."""
    own = [
        _write(folder, len(rows) + i, tokens)
        for i, tokens in enumerate(_segments(documents, int(made_for["vocab_size"]), most))
    ]
    if not own:
        raise ForetokenError(f"There is no text to put into {folder}; name files that have some.")
    arrays = {"segments": np.concatenate([rows, np.array(own, np.int64)])}
    write_arrays(folder / _INDEX, _KIND, made_for, arrays)


def _segments(
    documents: Iterable[Seq[int]], vocab_size: int, most: int
) -> Iterator[NDArray[np.integer]]:
    """The texts, a mark after each, in arrays of at most `most` ids; longer texts are cut."""
    pieces: list[NDArray[np.integer]] = []
    size = 0
    mark = np.array([vocab_size])
    for document in documents:
        ids = np.asarray(document, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise ForetokenError(
                f"A text has token ids from {ids.min()} to {ids.max()} and the vocabulary "
                f"{vocab_size}; use the target's own tokenizer."
            )
        for start in range(0, len(ids), most - 1):
            piece = np.concatenate([ids[start : start + most - 1], mark])
            if size + len(piece) > most:
                yield np.concatenate(pieces).astype(_ids(vocab_size))
                pieces, size = [], 0
            pieces.append(piece)
            size += len(piece)
    if pieces:
        yield np.concatenate(pieces).astype(_ids(vocab_size))


def _write(folder: Path, number: int, tokens: NDArray[np.integer]) -> list[int]:
    """Write a segment; returns its row of the index: tokens, and the files' checksums."""
    arrays = (tokens, suffix_array(tokens).astype("<u4"))
    try:
        for part, array in zip(_PARTS, arrays, strict=True):
            np.save(_file(folder, number, part), array)
    except OSError as error:
        raise ForetokenError(f"{folder} can't be written: {error.strerror}.") from error
    return [len(tokens), *(_checksum(array) for array in arrays)]


def _index(folder: Path, made_for: MadeFor) -> NDArray[np.integer]:
    """[segments, 3] tokens of a segment and its two checksums."""
    return read_arrays(folder / _INDEX, _KIND, made_for, ("segments",))["segments"]


def _mapped(path: Path, length: int, checksum: int) -> NDArray[np.integer]:
    """A memory-mapped array, checked to be the one that was written."""
    try:
        array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise ForetokenError(f"{path} is missing or damaged; build the datastore again.") from error
    if len(array) != length or _checksum(array) != checksum:
        raise ForetokenError(f"{path} is damaged; build the datastore again.")
    return array


def _checksum(array: NDArray[np.integer]) -> int:
    parts, checksum = array.view(np.uint8).data, 0
    for start in range(0, len(parts), _READ_AT_ONCE):
        checksum = zlib.crc32(parts[start : start + _READ_AT_ONCE], checksum)
    return checksum


def _file(folder: Path, number: int, part: str) -> Path:
    return folder / f"{number}.{part}.npy"


def _ids(vocab_size: int) -> np.dtype[np.integer]:
    """How ids and the mark, which is `vocab_size`, are stored: in two bytes if they fit, or
    four."""
    return np.dtype(">u2") if vocab_size < 1 << 16 else np.dtype(">u4")
