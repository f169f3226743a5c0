"""Memory for weights, and for what is in memory only while they are packed.

All but small pieces have maps of their own: freed, they go back to the system, where the allocator
would keep gigabytes of holes between weights.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

_OWN_MAP = 2**16  # bytes; what is smaller is the allocator's
_LARGEST = 2**27  # bytes of what is kept to be used again
_FREE = 3  # references to a map that no tensor has: the list's, the loop's, the count's own

_spare: list[mmap.mmap] = []


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for weights, in pages of 2 MiB where the system has them: 4 to 12 rows take a fifth
    less time, as fewer addresses have to be looked up."""
    size = math.prod(shape) * dtype.itemsize
    if size < _OWN_MAP or sys.platform == "win32":
        return torch.empty(shape, dtype=dtype)
    pages = _mapped(size)
    if (huge := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with contextlib.suppress(OSError):  # a system may be built without them
            pages.madvise(huge)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def passing(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for what is packed and then let go, in ordinary pages: fresh large ones can take a
    virtual machine seconds. Within `reusing`, memory that was let go serves again."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < _OWN_MAP or sys.platform == "win32":
        return torch.empty(shape, dtype=dtype)
    pages = next(filter(None, (_fitting(i, size) for i in range(len(_spare)))), None)
    if pages is None:
        pages = _mapped(size)
        if size <= _LARGEST:
            _spare.append(pages)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(shape)


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    """While the block runs, what `passing` gave and was let go serves again: a new page
    takes the system longer to give than it takes to dequantise into it."""
    try:
        yield
    finally:
        _spare.clear()


def _fitting(index: int, size: int) -> mmap.mmap | None:
    """A spare map, if no tensor has it and it isn't much too large."""
    pages = _spare[index]
    free = sys.getrefcount(pages) == _FREE
    return pages if free and size <= len(pages) <= 2 * size else None


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
