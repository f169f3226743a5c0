"""Memory that is there when it is used: a range of addresses as long as a cache may ever become.

The system backs a page of it when the page is first written, and takes it back when it is cleared.
So a cache can have the shape that its addresses are simplest in, a row for each sequence as long as
the longest text, and takes the bytes of what is in it; it grows without being copied, and stands
where it stood, for compiled loops as for captured graphs. The idea is vAttention's (Prabhu et al.
2024, section 5), which maps a GPU's pages by the driver; on a CPU the system does it by itself.
"""

from __future__ import annotations

import contextlib
import mmap
import sys

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
_NORESERVE = 0x4000  # linux/mman.h; Python names it from 3.13 on


class Memory:
    """`data` [size] uint8, zeros. lazy: whether pages that were not written take no memory, and
    `clear` returns those that were."""

    def __init__(self, size: int, device: torch.device) -> None:
        """Raises `MemoryError` where there aren't so many addresses, or without `lazy` bytes."""
        self.lazy = device.type == "cpu" and sys.platform == "linux"
        self._map: mmap.mmap | None = None
        try:
            self.data = self._mapped(size) if self.lazy else _allocated(size, device)
        except (RuntimeError, OSError, OverflowError, TypeError, ValueError) as error:
            raise MemoryError(size) from error

    def _mapped(self, size: int) -> Tensor:
        # Not counted against what the machine has, as little of it is going to be written.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._map = mmap.mmap(-1, max(size, PAGE), flags=flags)
        with contextlib.suppress(OSError):  # a system may be built without huge pages
            # One for each head's first token would be most of a small cache.
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def clear(self, start: int, end: int) -> None:
        """Make these bytes, of whole pages, zeros again."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
        else:
            self.data[start:end] = 0


def _allocated(size: int, device: torch.device) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=device)
