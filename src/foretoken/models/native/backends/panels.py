"""float32 weights in one layout that serves one row and many, by a loop of `kernels.cpp`.

oneDNN's packed layout costs up to a half more than torch's at one row and uses half of the
CPU's arithmetic at sixteen. This one streams at the memory's speed up to six rows and comes near
the CPU's peak beyond. A row's result has the same bits alone and among others, whatever they are.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.native.backends import kernels, pages
from foretoken.models.native.layer import Linear

_SHARED = 48 * 1024  # weights; threads are started for no fewer

supports = kernels.supports


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    return Product(weight, bias)


class Matrix(ctypes.Structure):
    """As in `products.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "scales", "shifts")),
        ("outputs", ctypes.c_long),
        ("inputs", ctypes.c_long),
        ("unit", ctypes.c_float),
        ("kind", ctypes.c_int),
    )


_KINDS = {torch.float32: 0, torch.float16: 1, torch.int8: 2}
_FOUR = 4  # int8 weights of this many inputs lie together
_PART = 256  # rows summed together: torch widens them first
_ZERO = 64  # what int8 activations are shifted by


class Product:
    """x -> x wᵀ · unit + bias, for a weight [out, in] in float32, float16 or int8.

    int8 weights in [-127, 127] have `scales` [out]; activations then are quantised, row by row.
    panels: the weight, reordered. matrix: all that the loops need. shared: worth several threads.
    """

    __slots__ = ("_loops", "_tensors", "inputs", "matrix", "outputs", "panels", "shared")

    def __init__(
        self, weight: Tensor, bias: Tensor | None, unit: float = 1.0, scales: Tensor | None = None
    ) -> None:
        loops = kernels.library()
        assert loops is not None
        self._loops, width = loops, loops.width()
        self.outputs, self.inputs = weight.shape
        if any(x is not None and tuple(x.shape) != (self.outputs,) for x in (bias, scales)):
            raise ForetokenError(
                f"A packed layer of {self.outputs} outputs takes a bias and scales of as many, and "
                "got others; check the checkpoint's tensors."
            )
        self.shared = weight.numel() >= _SHARED
        filled = -(-self.outputs // width) * width
        shifts = None
        if scales is None:
            self.panels = pack(loops, weight)
        else:
            sums = [part.sum(1, dtype=torch.int32) for part in weight.split(_PART)]
            shifts = _filled(_ZERO * torch.cat(sums), filled)
            scales, self.panels = _filled(scales, filled), pack_fours(weight, width)
        bias = None if bias is None else _filled(bias, filled)
        self._tensors = (bias, scales, shifts)  # whose memory `matrix` points to
        places = (None if x is None else x.data_ptr() for x in self._tensors)
        self.matrix = Matrix(
            self.panels.data_ptr(), *places, filled, self.inputs, unit, _KINDS[weight.dtype]
        )

    def __call__(self, x: Tensor) -> Tensor:
        graded = x.requires_grad and torch.is_grad_enabled()
        if graded or x.dtype != torch.float32 or x.shape[-1] != self.inputs:
            raise ForetokenError(
                f"A packed layer takes float32 [..., {self.inputs}] and gives no gradients, and "
                f"got {x.dtype} {list(x.shape)}; use backend='plain'."
            )
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
    filled = F.pad(weight, (0, -inputs % _FOUR, 0, -outputs % width))
    shape = (len(filled) // width, filled.shape[1] // _FOUR, width, _FOUR)
    parts = filled.view(shape[0], width, shape[1], _FOUR).transpose(1, 2)
    return pages.empty(shape, torch.int8).copy_(parts)
