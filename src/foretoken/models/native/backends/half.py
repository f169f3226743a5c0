"""float32 arithmetic over weights that are stored as float16, where that loses nothing.

A checkpoint saved as float16 holds float16 numbers whatever it is loaded as, and one saved as
bfloat16 too, once a matrix is scaled by a power of two so that its largest number is as large as
float16 allows (which brings the small ones out of float16's subnormals). Read as such they are
half the bytes, and a pass over few tokens takes the time that its weights take to arrive. The
products and sums are float32's. A matrix that float16 can't hold exactly stays float32.

A loop of `kernels.cpp` multiplies, and rows are then as those of `panels`; where it can't be built,
FBGEMM does, at 0.5 to 0.6 of the time of oneDNN's packed float32, and a row's result, though it
does not depend on its neighbours, has other bits alone than among them (about 3e-6, relative).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foretoken.models.native.backends import kernels, packed, panels
from foretoken.models.native.layer import Linear

_ENGINES = ("fbgemm", "x86")  # those whose float16 product this is
_PART = 256  # rows looked at together: a copy of them all would stay in the allocator
_LARGEST = 15  # float16 ends below 2^16; one octave is left, as rounding must not reach it


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return kernels.supports(dtype, device) or (
        packed.supports(dtype, device)
        and dtype == torch.float32
        and torch.backends.quantized.engine in _ENGINES
    )


def is_exact(weight: Tensor) -> bool:
    """Whether float16 can hold this matrix, scaled or not."""
    return _scale(weight) is not None


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    scale = _scale(weight)
    if scale is None:
        weight = weight.float()
        if kernels.supports(weight.dtype, weight.device):
            return panels.make(weight, bias)
        return packed.make(weight, bias)
    weight, unit = weight if scale == 1 else weight.mul_(scale), 1 / scale
    if kernels.library() is not None:
        return panels.Product([panels.floats(weight.half(), unit)], bias)
    packed_weight = torch.ops.quantized.linear_prepack_fp16(weight, None)
    run = torch.ops.quantized.linear_dynamic_fp16.default
    if bias is None:
        return lambda x: run(x, packed_weight).mul_(unit)
    return lambda x: run(x, packed_weight).mul_(unit).add_(bias)


def _scale(weight: Tensor) -> float | None:
    """The power of two by which the float32 matrix [out, in] becomes float16 without loss, if any;
    1 for one in float16."""
    largest = max(abs(float(end)) for end in weight.aminmax())
    if not 0 < largest < math.inf:
        return 1.0 if largest == 0 else None
    if weight.dtype == torch.float16:
        return 1.0
    for scale in (1.0, 2.0 ** (_LARGEST - math.frexp(largest)[1])):
        parts = (part.float() * scale for part in weight.split(_PART))
        if all(torch.equal(part.half().float(), part) for part in parts):
            return scale
    return None
