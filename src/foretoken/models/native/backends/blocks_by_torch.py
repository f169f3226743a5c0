"""Blocks of GGUF files multiplied by torch's operators, where the loops for them can't be used.

The bits are the loops' (`products_blocks.h`), at many times their cost: whole numbers of a block
are added exactly, as float32 holds every such sum; then, block by block, one multiply-add that
rounds once. That is computed in float64, where the product of two float32 is exact. The sum's last
bit is made to say whether anything was rounded off, so that rounding it again, to float32, gives
what rounding once would.

Legend: B blocks of a file's format, M rows, N outputs, K inputs, P parts of 16 or 32 inputs that
share a scale.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.native.backends import panels
from foretoken.models.native.layer import Linear

_BLOCK = 32  # inputs of a row that share a scale
_ROWS = 32  # multiplied together at most
_MANY = 2**22  # numbers that are multiplied at a time
_TINY = 1e-30  # a block of no larger numbers is zeros: 127 / largest could be infinite

_log = logging.getLogger(__name__)

Quants = tuple[Tensor, Tensor, Tensor | None]
"""int8 [B, numbers of a block], scales [B, P] and what is added to the products, [B, P] or None."""


@dataclass(frozen=True)
class Format:
    """A block's numbers and bytes, and what reads blocks, uint8 [B, size]."""

    values: int
    size: int
    read: Callable[[Tensor], Quants]


def _half(raw: Tensor, at: int) -> Tensor:
    """The float16 number at a byte, [B, 1] in float32."""
    pair = raw[:, at : at + 2].clone(memory_format=torch.contiguous_format)
    return pair.view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """Lower halves of the bytes, then upper ones: [..., n] -> [..., 2n]."""
    return torch.cat([raw & 15, raw >> 4], -1)


def _spread(raw: Tensor, bits: int) -> Tensor:
    """Numbers of a few bits that lie one after the other, [B, n] -> [B, 8 / bits · n]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    spread: Tensor = raw[..., None] >> shifts & 2**bits - 1
    return spread.flatten(1)


def _signed(quants: Tensor, offset: int) -> Tensor:
    return quants.to(torch.int8) - offset


def _q4_0(raw: Tensor) -> Quants:
    return _signed(_nibbles(raw[:, 2:]), 8), _half(raw, 0), None


def _q4_1(raw: Tensor) -> Quants:
    return _signed(_nibbles(raw[:, 4:]), 0), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: Tensor) -> Quants:
    quants = _nibbles(raw[:, 6:]) | _spread(raw[:, 2:6], 1) << 4
    return _signed(quants, 16), _half(raw, 0), None


def _q6_0(raw: Tensor) -> Quants:
    quants = _nibbles(raw[:, 10:]) | _spread(raw[:, 2:10], 2) << 4
    return _signed(quants, 32), _half(raw, 0), None


def _q8_0(raw: Tensor) -> Quants:
    return raw[:, 2:].contiguous().view(torch.int8), _half(raw, 0), None


def _q4_k(raw: Tensor) -> Quants:
    return _with_minima(raw, _nibbles(raw[:, 16:].reshape(-1, 4, 32)))


def _q5_k(raw: Tensor) -> Quants:
    """Bit i of a byte of the 32 that hold fifth bits is for part i of 8."""
    above = raw[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1  # [B, 8, 32]
    low = _nibbles(raw[:, 48:].reshape(-1, 4, 32))
    return _with_minima(raw, low | above.reshape(low.shape) << 4)


def _with_minima(raw: Tensor, quants: Tensor) -> Quants:
    """Eight parts with a scale and a minimum of six bits each, in twelve bytes."""
    first, second, third = raw[:, 4:16].split(4, 1)
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], 1)
    least = torch.cat([second & 63, third >> 4 | second >> 6 << 4], 1)
    minima = 0 - least.float() * _half(raw, 2)
    return _signed(quants.flatten(1), 0), scales.float() * _half(raw, 0), minima


def _q6_k(raw: Tensor) -> Quants:
    low, high = raw[:, :128].view(-1, 2, 64), raw[:, 128:192].reshape(-1, 2, 1, 32)
    above = high >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3  # [B, 2, 4, 32]
    quants = _nibbles(low) | above.flatten(2) << 4
    scales = raw[:, 192:208].contiguous().view(torch.int8).float() * _half(raw, 208)
    return _signed(quants.flatten(1), 32), scales, None


FORMATS = {
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q5_0": Format(32, 22, _q5_0),
    "Q8_0": Format(32, 34, _q8_0),
    "Q4_K": Format(256, 144, _q4_k),
    "Q5_K": Format(256, 176, _q5_k),
    "Q6_K": Format(256, 210, _q6_k),
    "Q6_0": Format(32, 26, _q6_0),
}


class Matrix:
    """[outputs, inputs] unpacked: quants int8 [P, N, numbers of a part], scales and `least`, what
    is added, float32 [P, 1, N]. nbytes: what its rows take as an embedding beside a product."""

    nbytes = 0

    def __init__(self, data: Tensor, kind: str, inputs: int) -> None:
        """data: uint8 [outputs, bytes of a row]."""
        quants, scales, least = FORMATS[kind].read(data.reshape(-1, FORMATS[kind].size))
        self.outputs, self.inputs = len(data), inputs
        parts = quants.numel() // len(data) * scales.shape[1] // quants.shape[1]
        self.quants = quants.view(len(data), parts, -1).transpose(0, 1).contiguous()
        self.scales = _by_parts(scales, parts)
        self.least = None if least is None else _by_parts(least, parts)

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self.quants.nbytes + (1 if self.least is None else 2) * self.scales.nbytes

    def __call__(self, rows: Tensor) -> Tensor:
        """Those rows, as an embedding: [..., inputs]. Raises IndexError for one that is missing."""
        taken = rows.reshape(-1)
        if len(taken) and not 0 <= int(taken.min()) <= int(taken.max()) < self.outputs:
            raise IndexError(f"rows are 0 to {self.outputs - 1}")
        numbers = self.quants[:, taken].float() * self.scales[:, 0, taken, None]  # [P, rows, part]
        if self.least is not None:
            numbers += self.least[:, 0, taken, None]
        joined = numbers.transpose(0, 1).flatten(1)[:, : self.inputs]
        return joined.reshape(*rows.shape, self.inputs)


def _by_parts(x: Tensor, parts: int) -> Tensor:
    """[B, P of a block] -> [P, 1, N]"""
    return x.reshape(-1, parts).t().contiguous()[:, None]


def numbers(data: Tensor, kind: str, inputs: int) -> Tensor:
    """Rows of blocks, uint8 [N, bytes of a row], as float32 [N, inputs]."""
    return Matrix(data, kind, inputs)(torch.arange(len(data)))


class Product:
    """x -> x wᵀ + bias, for a weight in one or several parts, one after the other: matrices, and
    linear layers of so many outputs for what isn't quantised. nbytes: of the matrices."""

    def __init__(
        self, parts: Sequence[Matrix | tuple[Linear, int]], inputs: int, bias: Tensor | None
    ) -> None:
        say_that_it_is_slow()
        self._parts, self._bias, self.inputs = list(parts), bias, inputs
        self.outputs = sum(p.outputs if isinstance(p, Matrix) else p[1] for p in parts)
        self.nbytes = sum(
            p.size if isinstance(p, Matrix) else 4 * inputs * p[1] for p in self._parts
        )
        panels.check_size(self.outputs, bias)

    def __call__(self, x: Tensor) -> Tensor:
        panels.check_input(x, self.inputs)
        rows = x.reshape(-1, self.inputs)
        found = [_times(rows, p) if isinstance(p, Matrix) else p[0](rows) for p in self._parts]
        y = torch.cat(found, 1)
        return (y if self._bias is None else y.add_(self._bias)).view(*x.shape[:-1], self.outputs)


def _times(x: Tensor, weight: Matrix) -> Tensor:
    """[M, K] -> [M, N]"""
    if not len(x):
        return x.new_empty(0, weight.outputs)
    return torch.cat([_few_times(part, weight) for part in x.split(_ROWS)])


def _few_times(x: Tensor, weight: Matrix) -> Tensor:
    parts, outputs, size = weight.quants.shape
    whole, scales, shifts = _quantised(x, parts * size // _BLOCK)
    whole = whole.reshape(len(x), parts, size).transpose(0, 1)  # [P, M, numbers of a part]
    scales = scales.repeat_interleave(_BLOCK // size, 0)
    sums = x.new_zeros(len(x), outputs)
    step = max(1, _MANY // (outputs * (size + len(x))))
    for first in range(0, parts, step):
        some = slice(first, first + step)
        dots = whole[some] @ weight.quants[some].float().transpose(1, 2)  # [P, M, N]
        scaled = dots.mul_(scales[some])
        for i, at in enumerate(range(first, min(first + step, parts))):
            sums = _fused(scaled[i], weight.scales[at], sums)
            if weight.least is not None:
                sums = _fused(shifts[at], weight.least[at], sums)
    return sums


def _quantised(x: Tensor, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [M, K], filled up with zeros -> whole numbers up to ±127 [M, blocks, 32] as floats,
    their scales [blocks, M, 1] and their scaled sums [blocks, M, 1]."""
    parts = F.pad(x, (0, blocks * _BLOCK - x.shape[1])).view(len(x), blocks, _BLOCK)
    largest = parts.abs().amax(-1, keepdim=True)
    most = torch.tensor(127.0)  # a plain number would be multiplied with 1 / largest
    whole = (parts * torch.where(largest > _TINY, most / largest, 0)).round_()
    scales = largest / most
    shifts = scales * whole.sum(-1, keepdim=True)
    return whole, scales.transpose(0, 1), shifts.transpose(0, 1)


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a · b + c of float32, rounded once."""
    product, wide = a.double() * b.double(), c.double()
    total = product + wide
    own = total - product
    rest = (product - (total - own)) + (wide - own)  # what the sum has lost, exactly
    away = rest * total  # above 0 where the sum is too near zero
    bits = total.view(torch.int64)
    # Of the sum and its neighbour towards what it has lost, the odd one: never half-way between two
    # float32, unless that is exact.
    change = (away > 0).long() - (away < 0).long()
    return (bits + change * (~bits & 1)).view(torch.float64).float()


@functools.cache
def say_that_it_is_slow() -> None:
    _log.warning(
        "The loops that multiply blocks of weights can't be used here; torch does it, many times "
        "slower, with the same products. Install g++ (Linux on an x86 CPU with AVX2), or give "
        "another backend, as 'auto' or 'half'."
    )
