"""Quantises a matrix to blocks of 32 numbers with one scale, or of 256 with scales and minima.

A block's scale s is found by least squares: for whole numbers q the best is Σ x·q / Σ q², and of
the q that several first scales round to, those are taken whose best scale leaves the least error.

Legend: B blocks, N numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.native.backends import blocks, kernels, pages
from foretoken.models.native.backends.blocks import VALUES, Blocks
from foretoken.models.native.layer import Linear

BITS = {"Q4_0": 4, "Q5_0": 5, "Q6_0": 6, "Q8_0": 8}
"""Of formats with a scale for 32 numbers and nothing else."""
WRITTEN = (*BITS, "Q4_K")

_PART = 2**18  # numbers quantised together: they stay in the cache
_STEPS = (-0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)
"""First scales: the largest number becomes the lowest whole number, or one that is off by these."""
_TRIALS = (-1.0, -0.6, -0.2, 0.2, 0.6, 1.0)
"""The same for blocks with minima, off the highest whole number."""
_TINY = 1e-30


@dataclass(frozen=True)
class Quantised:
    """A backend that multiplies a checkpoint's matrices in a format of blocks. kind: one of
    `BITS`."""

    kind: str

    def supports(self, dtype: torch.dtype, device: torch.device) -> bool:
        return blocks.supports(dtype, device)

    def make(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return blocks.product([self.stored(weight)], bias)

    def stored(self, tensor: Any) -> Any:
        """A tensor of a checkpoint as the model keeps it: matrices, the embedding among them, in
        blocks, those of this format as they are."""
        if len(tensor.shape) != 2 or (isinstance(tensor, Blocks) and tensor.kind == self.kind):
            return tensor
        return quantised(tensor, self.kind)


BACKENDS = {f"q{bits}": Quantised(kind) for kind, bits in BITS.items()}


def quantised(weight: Tensor | Blocks, kind: str) -> Blocks:
    """A matrix [outputs, inputs] of any floating dtype in one of `WRITTEN`; a row's last block is
    filled up with zeros."""
    outputs, inputs = weight.shape
    if isinstance(weight, Blocks):  # those that lie in a file are read at once
        weight = Blocks(weight.data, weight.kind, inputs)
    write = _with_minima if kind == "Q4_K" else _with_scales
    step = max(1, _PART // inputs)
    data: Tensor | None = None
    for first in range(0, outputs, step):
        last = min(first + step, outputs)
        rows = (
            weight(torch.arange(first, last)) if isinstance(weight, Blocks) else weight[first:last]
        )
        filled = F.pad(rows.float(), (0, -inputs % VALUES[kind]))
        numbers = filled.reshape(-1, VALUES[kind])
        part = write(numbers, kind).view(last - first, -1)
        if data is None:
            data = pages.passing((outputs, part.shape[1]), torch.uint8)
        data[first:last] = part
    assert data is not None, "a matrix has rows"
    return Blocks(data, kind, inputs)


def _with_scales(x: Tensor, kind: str) -> Tensor:
    """[B, 32] -> bytes [B, bytes of a block]."""
    bits = BITS[kind]
    symmetric = by_torch if kernels.library() is None else kernels.quantise
    scales, whole = symmetric(x, 2 ** (bits - 1))
    head = _head(scales, x, kind)
    if bits == 8:
        return torch.cat([head, whole.to(torch.int8).view(torch.uint8)], 1)
    quants = (whole + 2 ** (bits - 1)).to(torch.uint8)
    parts = [head, quants[:, :16] & 15 | quants[:, 16:] << 4]
    if bits == 5:
        parts.insert(1, _packed(quants >> 4, 1))
    if bits == 6:
        parts.insert(1, _packed(quants >> 4, 2))
    return torch.cat(parts, 1)


def _head(scales: Tensor, x: Tensor, kind: str) -> Tensor:
    """Scales [B, 1] -> bytes [B, 2]. Raises `ForetokenError` where float16 has none so large."""
    narrow = scales.half()
    if not narrow.isfinite().all():
        raise ForetokenError(
            f"A matrix has numbers as large as {float(x.abs().max()):.3g}, for which {kind} has no "
            "scale; leave out backend or draft_backend, or write a file by --format F32."
        )
    return narrow.view(torch.uint8).view(-1, 2)


def _packed(above: Tensor, bits: int) -> Tensor:
    """Numbers of a few bits [B, 32], one after the other -> bytes [B, 4 · bits]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return (above.view(len(above), -1, len(shifts)) << shifts).sum(2, dtype=torch.uint8)


def by_torch(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Scales [B, 1] and whole numbers from -most to most - 1, [B, 32], as floats: what
    `kernels.quantise` does, slowly."""
    extreme = x.gather(1, x.abs().argmax(1, keepdim=True))
    inverse = torch.where(extreme.abs() > _TINY, 1 / extreme, 0)
    gain, factor = torch.full_like(extreme, -1.0), torch.zeros_like(extreme)
    for step in _STEPS if most < 128 else (1.0,):  # of 8 bits, ±127
        product, square = _sums(x, _whole(x, inverse * (step - most), most))
        better = (found := product * product / square) > gain
        gain = torch.where(better, found, gain)
        factor = torch.where(better, inverse * (step - most), factor)
    whole = _whole(x, factor, most)
    product, square = _sums(x, whole)
    return product / square, whole


def _whole(x: Tensor, factor: Tensor, most: int) -> Tensor:
    return (x * factor).round_().clamp_(-most, most - 1)


def _sums(x: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Σ x·q and Σ q² of each block [B, 1], the latter never 0."""
    return (x * whole).sum(1, keepdim=True), whole.square().sum(1, keepdim=True).clamp_min(1)


def _with_minima(x: Tensor, kind: str) -> Tensor:
    """[B, 256] -> bytes [B, 144]: eight parts with a scale and a minimum of six bits each."""
    parts = x.view(-1, 32)
    scales, least = _ranged(parts)
    whole_scales, unit = _six_bits(scales.view(-1, 8))
    scale = (whole_scales * unit).view(-1, 1)
    # A part beside far larger ones may have no scale left: its mean is nearer than its minimum.
    least = torch.where(scale > 0, least, -parts.mean(1, keepdim=True)).clamp_min_(0)
    whole_least, unit_least = _six_bits(least.view(-1, 8))
    lowest = (whole_least * unit_least).view(-1, 1)
    inverse = torch.where(scale > _TINY, 1 / scale, 0)
    quants = ((parts + lowest) * inverse).round_().clamp_(0, 15).to(torch.uint8)
    pairs = quants.view(-1, 4, 2, 32)
    low = (pairs[:, :, 0] | pairs[:, :, 1] << 4).view(len(x), -1)
    heads = [_head(one, x, kind) for one in (unit, unit_least)]
    return torch.cat([*heads, _twelve(whole_scales, whole_least), low], 1)


def _ranged(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales s and minima m [N, 1], none below 0, so that x [N, 32] is about s·q - m."""
    low, high = x.amin(1, keepdim=True).clamp_max_(0), x.amax(1, keepdim=True).clamp_min_(0)
    span = (high - low).clamp_min_(_TINY)
    error, scales, least = torch.full_like(low, torch.inf), span / 15, -low
    for trial in _TRIALS:
        whole = ((x - low) * ((15 + trial) / span)).round_().clamp_(0, 15)
        found, base = _line(x, whole)
        rest = ((found * whole - base - x) ** 2).sum(1, keepdim=True)
        better = (rest < error) & (found > 0)
        error = torch.where(better, rest, error)
        scales, least = torch.where(better, found, scales), torch.where(better, base, least)
    return scales, least


def _line(x: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and minimum that suit these whole numbers best; no minimum above 0 is written."""
    mean, own = whole.mean(1, keepdim=True), x.mean(1, keepdim=True)
    spread = ((whole - mean) ** 2).sum(1, keepdim=True)
    scale = ((whole - mean) * (x - own)).sum(1, keepdim=True) / spread.clamp_min(_TINY)
    least = scale * mean - own
    product, square = _sums(x, whole)
    return torch.where(least < 0, product / square, scale), least.clamp_min(0)


def _six_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """[B, 8] of none below 0 -> whole numbers up to 63 and the scale [B, 1], as float16 has it."""
    unit = (x.amax(1, keepdim=True) / 63).half().float()
    return torch.where(unit > 0, x / unit, 0).round_().clamp_(0, 63), unit


def _twelve(scales: Tensor, least: Tensor) -> Tensor:
    """Eight scales and eight minima [B, 8] of six bits each -> bytes [B, 12], as Q4_K has them."""
    s, m = scales.to(torch.uint8), least.to(torch.uint8)
    first, second = s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6
    return torch.cat([first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], 1)
