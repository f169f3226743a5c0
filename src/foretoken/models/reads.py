"""Parts of files, read without filling the system's page cache.

What is read again and again from a file that is larger than memory must not stay in the cache,
where it would push out all else. Parts are read, not mapped: a map ends the process where its file
can't be read any more.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from foretoken.errors import ForetokenError

_AT_ONCE = 2**23  # bytes that are in the page cache before they are dropped
_ALIGNED = 64  # bytes; what begins so serves every dtype


class Place(NamedTuple):
    """Where a tensor's bytes lie."""

    file: Path
    start: int
    size: int


def buffer(places: Iterable[Mapping[str, Place]]) -> memoryview:
    """Memory for any one of these groups."""
    return memoryview(mmap.mmap(-1, max(map(_aligned, places), default=1)))


def _aligned(places: Mapping[str, Place]) -> int:
    return sum(-(-place.size // _ALIGNED) * _ALIGNED for place in places.values())


class Reads:
    """Files held open, so that no others can take their places."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Raises `ForetokenError` for a file that can't be opened."""
        self._files: dict[Path, int] = {}
        weakref.finalize(self, _close, self._files)
        for file in files:
            opened = self._files[file] = _opened(file)
            # Else the system reads more than is asked for, which would stay in its cache.
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, places: Mapping[str, Place], into: memoryview) -> dict[str, memoryview]:
        """The bytes of each, in a buffer. Raises `ForetokenError` where a file has shrunk or can't
        be read any more."""
        parts, at = dict[str, memoryview](), 0
        for name, place in places.items():
            parts[name] = into[at : at + place.size]
            self._fill(place, parts[name])
            at += -(-place.size // _ALIGNED) * _ALIGNED
        return parts

    def forget(self) -> None:
        """Drop the files from the page cache, but for what is mapped."""
        for file in self._files.values():
            _drop(file, 0, 0)

    def _fill(self, place: Place, part: memoryview) -> None:
        file, done = self._files[place.file], 0
        while done < place.size:
            start = place.start + done
            try:
                count = os.preadv(file, [part[done : done + _AT_ONCE]], start)
            except OSError as error:
                raise _unreadable(place.file, error) from error
            if not count:
                raise _shrunk(place.file)
            _drop(file, start, count)
            done += count


class Rows:
    """The rows of a matrix that stays in its file, which is held open, so that no other can take
    its place."""

    def __init__(self, place: Place, count: int) -> None:
        """count: how many it has. Raises `ForetokenError` for a file that can't be opened."""
        self._place, self._count, self._size = place, count, place.size // count
        self._file = _opened(place.file)
        weakref.finalize(self, os.close, self._file)

    def __call__(self, rows: Tensor) -> Tensor:
        """Those rows' bytes, uint8 [N, bytes of a row] for N numbers of rows of any shape. Raises
        IndexError for a row that isn't there, and `ForetokenError` where the file has shrunk or
        can't be read any more."""
        numbers = rows.reshape(-1).tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < self._count:
            raise IndexError(f"rows are 0 to {self._count - 1}")
        start, size, file = self._place.start, self._size, self._file
        try:
            read = bytearray().join(os.pread(file, size, start + size * row) for row in numbers)
        except OSError as error:
            raise _unreadable(self._place.file, error) from error
        if len(read) != size * len(numbers):
            raise _shrunk(self._place.file)
        taken = torch.frombuffer(read, dtype=torch.uint8) if read else torch.empty(0).byte()
        return taken.view(len(numbers), size)


def _opened(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY)
    except OSError as error:
        raise _unreadable(file, error) from error


def _drop(file: int, start: int, size: int) -> None:
    """Drop bytes of a file from the page cache, with the pages that they share; 0: all."""
    before = start % mmap.PAGESIZE
    end = -(-(before + size) // mmap.PAGESIZE) * mmap.PAGESIZE
    os.posix_fadvise(file, start - before, end, os.POSIX_FADV_DONTNEED)


def _close(files: dict[Path, int]) -> None:
    for file in files.values():
        os.close(file)


def _shrunk(file: Path) -> ForetokenError:
    return ForetokenError(f"{file} is shorter than when it was opened; fetch it again.")


def _unreadable(file: Path, error: OSError) -> ForetokenError:
    return ForetokenError(
        f"{file} can't be read ({error.strerror}); check the disk, and load the model again."
    )
