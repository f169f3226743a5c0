"""float32 weights in one layout that serves one row and many, by a loop of `kernels.cpp`.

oneDNN's packed layout costs up to a half more than torch's at one row and uses half of the
CPU's arithmetic at sixteen. This one streams at the memory's speed up to six rows and comes near
the CPU's peak beyond. A row's result has the same bits alone and among others, whatever they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.native.backends import kernels, pages
from foretoken.models.native.layer import Linear

_SHARED = 48 * 1024  # weights; threads are started for no fewer

supports = kernels.supports


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    return Product([floats(weight)], bias)


class Matrix(ctypes.Structure):
    """As in `products.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "scales", "rest")),
        *((name, ctypes.c_long) for name in ("outputs", "inputs", "columns")),
        ("unit", ctypes.c_float),
        ("kind", ctypes.c_int),
    )


FLOAT32, FLOAT16, INT8, BLOCKS = range(4)
"""What panels hold; from `BLOCKS` on blocks of GGUF files."""

_FOUR = 4  # int8 weights of this many inputs lie together
_OFFSET = 128  # what is added to int8 weights: the loops multiply unsigned with signed numbers


@dataclass(frozen=True)
class Part:
    """Rows of a matrix [outputs, inputs] in panels. kind: see `FLOAT32`. unit: what their products
    are multiplied by. scales: of each output of int8 weights, filled up."""

    panels: Tensor
    kind: int
    outputs: int
    inputs: int
    unit: float = 1.0
    scales: Tensor | None = None

    @property
    def columns(self) -> int:
        """The outputs, filled up to whole panels."""
        return -(-self.outputs // width()) * width()

    @property
    def nbytes(self) -> int:
        """Of the rows without those that fill up."""
        return self.panels.nbytes * self.outputs // self.columns


def floats(weight: Tensor, unit: float = 1.0) -> Part:
    """A weight [out, in] in float32 or float16."""
    kind = FLOAT32 if weight.dtype == torch.float32 else FLOAT16
    outputs, inputs = weight.shape
    return Part(pack(loops(), weight), kind, outputs, inputs, unit)


def bytes_of(weight: Tensor, scales: Tensor) -> Part:
    """int8 weights [out, in] in [-127, 127] with `scales` [out]. Activations then are quantised,
    row by row."""
    outputs, inputs = weight.shape
    check_size(outputs, scales)
    panels = pack_fours(weight, width())
    panels.view(torch.uint8).bitwise_xor_(_OFFSET)
    return Part(panels, INT8, outputs, inputs, 1.0, _filled(scales, outputs + -outputs % width()))


class Product:
    """x -> x wᵀ · unit + bias, for a weight in one or several parts, one after the other.

    All parts but the last fill whole panels. matrix: all that the loops need. shared: worth several
    threads. nbytes: of the weight as it is stored.
    """

    __slots__ = ("_loops", "_parts", "_tensors", "inputs", "matrix", "nbytes", "outputs", "shared")

    def __init__(self, parts: Sequence[Part], bias: Tensor | None) -> None:
        self._loops = loops()
        self.inputs, self.outputs = parts[0].inputs, sum(part.outputs for part in parts)
        self.nbytes = sum(part.nbytes for part in parts)
        self.shared = self.inputs * self.outputs >= _SHARED
        check_size(self.outputs, bias)
        self._tensors: list[Tensor | None] = []  # whose memory the matrices point to
        self._parts: list[Matrix] = []
        filled = sum(part.columns for part in parts)
        biases = [None] * len(parts) if bias is None else bias.split([p.outputs for p in parts])
        for part, own in reversed(list(zip(parts, biases, strict=True))):
            own = None if own is None else _filled(own, part.columns)
            tensors = [part.panels, own, part.scales]
            self._tensors += tensors
            places = [None if x is None else x.data_ptr() for x in tensors]
            rest = ctypes.addressof(self._parts[-1]) if self._parts else None
            sizes = filled, part.inputs, part.columns
            self._parts.append(Matrix(*places, rest, *sizes, part.unit, part.kind))
        self.matrix = self._parts[-1]

    def __call__(self, x: Tensor) -> Tensor:
        check_input(x, self.inputs)
        x, filled = x.contiguous(), self.matrix.outputs
        y = x.new_empty(*x.shape[:-1], filled)
        threads = torch.get_num_threads() if self.shared else 1
        self._loops.linear(
            x.data_ptr(),
            ctypes.addressof(self.matrix),
            y.data_ptr(),
            x.numel() // self.inputs,
            threads,
        )
        return y if filled == self.outputs else y[..., : self.outputs]


def loops() -> ctypes.CDLL:
    built = kernels.library()
    assert built is not None
    return built


def width() -> int:
    return int(loops().width())


def check_input(x: Tensor, inputs: int) -> None:
    """Raises `ForetokenError` for what a packed layer can't multiply."""
    graded = x.requires_grad and torch.is_grad_enabled()
    if graded or x.dtype != torch.float32 or x.shape[-1] != inputs:
        raise ForetokenError(
            f"A packed layer takes float32 [..., {inputs}] and gives no gradients, and got "
            f"{x.dtype} {list(x.shape)}; use backend='plain'."
        )


def check_size(outputs: int, given: Tensor | None) -> None:
    """Raises `ForetokenError` where a bias, or scales, are not one an output."""
    if given is not None and tuple(given.shape) != (outputs,):
        raise ForetokenError(
            f"A packed layer of {outputs} outputs takes a bias and scales of as many, and got "
            "others; check the checkpoint's tensors."
        )


def _filled(x: Tensor, size: int) -> Tensor:
    return F.pad(x, (0, size - len(x))).contiguous()


def pack(loops: ctypes.CDLL, weight: Tensor) -> Tensor:
    """[out, in] in float32 or float16 -> panels [out / width rounded up, in, width], filled up with
    zeros."""
    (outputs, inputs), width = weight.shape, loops.width()
    panels = pages.empty((-(-outputs // width), inputs, width), weight.dtype)
    rows, threads = weight.contiguous(), kernels.packers(weight.numel())
    loops.pack(rows.data_ptr(), panels.data_ptr(), outputs, inputs, weight.itemsize, threads)
    return panels


def pack_fours(weight: Tensor, width: int) -> Tensor:
    """int8 [out, in] -> panels [out / width, in / 4, width, 4], both rounded up and filled up."""
    outputs, inputs = weight.shape
    shape = (-(-outputs // width), -(-inputs // _FOUR), width, _FOUR)
    size = shape[0] * width, shape[1] * _FOUR
    filled = weight
    if weight.shape != size:
        filled = pages.passing(size, torch.int8).zero_()
        filled[:outputs, :inputs] = weight
    parts = filled.view(shape[0], width, shape[1], _FOUR).transpose(1, 2)
    return pages.empty(shape, torch.int8).copy_(parts)
