"""Memory for weights, and for what is in memory only while they are packed.

All but small pieces have maps of their own: freed, they go back to the system, where the allocator
would keep gigabytes of holes between weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

_OWN_MAP = 2**16  # bytes; what is smaller is the allocator's
_PAGE = 2**21  # a large one
_LARGE = 2**24  # bytes of weights from which on they have a map alone
_LINE = 64  # a cache line, where each piece begins
_LARGEST = 2**27  # bytes of what is kept to be used again

_spare: ContextVar[list[mmap.mmap] | None] = ContextVar("spare", default=None)
"""The maps that serve again, within `reusing`."""


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for weights, in pages of 2 MiB where the system has them: 4 to 12 rows take a fifth
    less time, as fewer addresses have to be looked up."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < _OWN_MAP or sys.platform == "win32":
        return torch.empty(shape, dtype=dtype)
    maps = _shared.get()
    pages, at = (_huge(size), 0) if maps is None or size >= _LARGE else maps.piece(size)
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=at).view(shape)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """While the block runs, what `empty` gives lies side by side: no page of 2 MiB fits into a
    small matrix' own map. It goes back to the system together, too."""
    before = _shared.set(_Maps())
    try:
        yield
    finally:
        _shared.reset(before)


class _Maps:
    """Maps of which pieces are taken, one after another."""

    def __init__(self) -> None:
        self._pages, self._at = _mapped(mmap.PAGESIZE), mmap.PAGESIZE

    def piece(self, size: int) -> tuple[mmap.mmap, int]:
        """A map and the place in it from which so many bytes are the caller's."""
        if self._at + size > len(self._pages):
            self._pages = _huge(2 * _LARGE + _PAGE)
            self._at = -ctypes.addressof(ctypes.c_char.from_buffer(self._pages)) % _PAGE
        at, self._at = self._at, self._at + size + -size % _LINE
        return self._pages, at


_shared: ContextVar[_Maps | None] = ContextVar("shared", default=None)


def _huge(size: int) -> mmap.mmap:
    """A map of large pages, as far as they fit into it."""
    pages = _mapped(size)
    if (huge := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with contextlib.suppress(OSError):  # a system may be built without them
            pages.madvise(huge)
    return pages


def passing(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for what is packed and then let go, in ordinary pages: fresh large ones can take a
    virtual machine seconds. Within `reusing`, memory that was let go serves again."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < _OWN_MAP or sys.platform == "win32":
        return torch.empty(shape, dtype=dtype)
    spare = _spare.get()
    found = (_fitting(spare, i, size) for i in range(len(spare))) if spare else ()
    pages = next(filter(None, found), None)
    if pages is None:
        pages = _mapped(size)
        if spare is not None and size <= _LARGEST:
            spare.append(pages)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(shape)


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    """While the block runs, what `passing` gave and was let go serves again: a new page
    takes the system longer to give than it takes to dequantise into it."""
    before = _spare.set([])
    try:
        yield
    finally:
        _spare.reset(before)


def _fitting(spare: list[mmap.mmap], index: int, size: int) -> mmap.mmap | None:
    """A spare map, if no tensor has it and it isn't much too large."""
    pages = spare[index]
    free = _references(spare, index) == _FREE
    return pages if free and size <= len(pages) <= 2 * size else None


def _references(maps: Sequence[object], index: int) -> int:
    """As Python counts them to a map in a list, those of this function among them."""
    pages = maps[index]
    return sys.getrefcount(pages)


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_FREE = _references([object()], 0) + 1  # no map, as Windows has other ones
"""Of a map that no tensor has, in `_fitting`, which has it by a name: versions of Python differ."""
