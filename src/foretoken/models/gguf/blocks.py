"""Tensors of a GGUF file as numbers: blocks are dequantised, by a loop of `kernels.cpp` where it
has one for their type and can be built, else by the package `gguf`, with the same bits.

Legend: N numbers.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.gguf.reader import Stored
from foretoken.models.native.backends import kernels, pages
from foretoken.models.native.backends.blocks import KINDS, Blocks
from foretoken.models.reads import Place, Rows

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Types whose numbers stand by themselves."""

SMALLEST, LARGEST = 2.0**-8, 2.0**15
"""Between them a tensor's largest magnitude must lie for float16: then no number is off by more
than 2^-11 of itself, or 2^-17 of the largest."""

_PART = 2**20  # numbers that `gguf` dequantises together


def read(stored: Stored, narrow: bool) -> Tensor:
    """A tensor, copied out of its file. Blocks become float16, where `narrow` and that is exact
    enough (`SMALLEST`), else float32.

    Raises `ForetokenError` where the file has shrunk.
    """
    with _bytes(stored) as data:
        return decoded(data, stored, narrow)


def decoded(data: NDArray[np.uint8], stored: Stored, narrow: bool) -> Tensor:
    """`read`, of bytes that were read."""
    if stored.kind.name in FLOATS:
        whole = torch.frombuffer(bytearray(data), dtype=FLOATS[stored.kind.name])
        return whole.view(stored.shape)
    dtype = torch.float16 if narrow else torch.float32
    numbers, largest = dequantised(data, stored, dtype)
    if narrow and not SMALLEST <= largest <= LARGEST:
        numbers, _ = dequantised(data, stored, torch.float32)
    return numbers.view(stored.shape)


class StoredBlocks(Blocks):
    """A matrix that stays in its file: all of it is read for `data`, and rows, for an embedding,
    when they are asked for."""

    def __init__(self, stored: Stored) -> None:
        self.kind, self.shape, self.nbytes = stored.kind.name, (stored.shape[0], stored.shape[1]), 0
        self._stored = stored
        self._rows = Rows(Place(stored.file, stored.start, stored.size), stored.shape[0])

    @property
    def data(self) -> Tensor:
        return raw(self._stored)

    def __call__(self, rows: Tensor) -> Tensor:
        """Those rows, [..., inputs] in float32. Raises IndexError for a row that isn't there, and
        `ForetokenError` where the file has shrunk."""
        return self._numbers(self._rows(rows), rows)


def raw(stored: Stored) -> Tensor:
    """A matrix's rows as they lie, uint8 [rows, bytes], copied out of its file. Raises
    `ForetokenError` where the file has shrunk."""
    with _bytes(stored) as data:
        copy = pages.passing((stored.size,), torch.uint8)
        copy.numpy()[:] = data
    return copy.view(stored.shape[0], -1)


@contextmanager
def _bytes(stored: Stored) -> Iterator[NDArray[np.uint8]]:
    """A tensor's bytes, mapped: for no longer than needed, as a map keeps all pages that were read
    in memory."""
    before = stored.start % mmap.ALLOCATIONGRANULARITY
    size, start = before + stored.size, stored.start - before
    try:
        with stored.file.open("rb") as file:
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=start)
    except (OSError, ValueError) as error:
        raise ForetokenError(
            f"{stored.file} is shorter than when it was opened; fetch it again."
        ) from error
    yield np.frombuffer(data, np.uint8, stored.size, before)  # whose end is the map's


def dequantised(
    data: NDArray[np.uint8], stored: Stored, dtype: torch.dtype
) -> tuple[Tensor, float]:
    """[N] in float16 or float32, and the largest magnitude."""
    if stored.kind.name in KINDS and kernels.library() is not None:
        return _by_loops(data, stored, dtype)
    return by_package(data, stored, dtype)


@cache
def can_be_read(kind: GGMLQuantizationType) -> bool:
    """Whether there is a way to get numbers out of this type."""
    from gguf import GGML_QUANT_SIZES, dequantize

    try:
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return kind.name in FLOATS
    return True


def _by_loops(data: NDArray[np.uint8], stored: Stored, dtype: torch.dtype) -> tuple[Tensor, float]:
    numbers = pages.passing((_count(stored),), dtype)
    kind = KINDS.index(stored.kind.name)
    return numbers, kernels.dequantise(data.ctypes.data, data.nbytes, numbers, kind)


def by_package(data: NDArray[np.uint8], stored: Stored, dtype: torch.dtype) -> tuple[Tensor, float]:
    """`dequantised` by the package `gguf`, for every type that `can_be_read`."""
    from gguf import GGML_QUANT_SIZES, dequantize

    values, size = GGML_QUANT_SIZES[stored.kind]
    numbers, largest = pages.passing((_count(stored),), dtype), 0.0
    blocks, step = data.reshape(-1, size), _PART // values
    for first in range(0, len(blocks), step):
        with np.errstate(all="ignore"):
            part: NDArray[Any] = dequantize(blocks[first : first + step], stored.kind)
        found = torch.from_numpy(part.reshape(-1))
        numbers[first * values :][: len(found)] = found
        largest = max(largest, float(found.abs().max().nan_to_num(torch.inf)))
    return numbers, largest


def _count(stored: Stored) -> int:
    return int(np.prod(stored.shape, dtype=object))
