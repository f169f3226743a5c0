"""int8 weights, one scale an output channel; on a CPU int8 activations, one scale a row.

The model so quantised *is* the target: its text is that of its plain decoding. That needs a
row's numbers to depend on that row alone. torch's dynamic quantisation takes one scale for all rows
of a pass, so a token would depend on its neighbours; here each row is divided by its largest
magnitude first, and the product of integers is exact.

On CPUs without VNNI, which add neighbouring products of bytes in 16 bits, sums of 8-bit activations
and weights overflow, so activations have 63 levels on either side of zero there, and 127 with VNNI.
A loop of `kernels.cpp` multiplies where it can be built and the CPU has AVX2; elsewhere FBGEMM
does, and whether it overflows is tried out. On a GPU see `weight_only.py`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.native.backends import kernels, pages, panels, weight_only
from foretoken.models.native.layer import Linear

_WEIGHTS = 127  # levels on either side of zero
_PART = 256  # rows quantised together: a float copy of them all would double the peak
_TINY = 1e-30  # the scale of a row of zeros


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type == "cuda":
        return dtype == torch.bfloat16
    if device.type != "cpu" or dtype != torch.float32:
        return False
    return _looped() or (
        "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
    )


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    if weight.device.type == "cuda":
        narrow = weight_only.int8(weight)
        return lambda x: F.linear(x, narrow, bias)
    whole, scales = _quantized(weight)
    if _looped():
        return panels.Product([panels.bytes_of(whole, scales)], bias)
    packed_weight, levels = _pack(whole, scales), _levels()
    run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def linear(x: Tensor) -> Tensor:
        size = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        result: Tensor = run(x / size, 1 / levels, levels + 1, packed_weight).mul_(size)
        return result if bias is None else result.add_(bias)

    return linear


def _looped() -> bool:
    loops = kernels.library()
    return loops is not None and bool(loops.int8_levels())


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [out, in], and the scale of each output channel [out]."""
    scales = torch.linalg.vector_norm(weight, torch.inf, 1).clamp_min_(_TINY).div_(_WEIGHTS)
    whole = pages.passing(tuple(weight.shape), torch.int8)
    levels = pages.passing((_PART, weight.shape[1]), weight.dtype)
    for start in range(0, len(weight), _PART):
        part = slice(start, start + _PART)
        rows = levels[: len(weight) - start]
        whole[part] = torch.div(weight[part], scales[part, None], out=rows).round_()
    return whole, scales


@functools.cache
def _levels() -> int:
    """How many activation levels on either side of zero this CPU multiplies without overflow."""
    most = torch.full((1, 64), 127.0)
    packed_weight = _pack(most.to(torch.int8), torch.ones(1))
    run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return 127 if run(most, 1.0, 128, packed_weight).item() == 127 * 127 * 64 else 63


def _pack(levels: Tensor, scales: Tensor) -> Any:
    """int8 [out, in] and a scale [out] each, in FBGEMM's layout."""
    with _fbgemm(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to replace its quantised tensors one day
        zeros = torch.zeros(len(scales), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(levels, scales.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(weight, None)


@contextmanager
def _fbgemm() -> Iterator[None]:
    """The engine that packs, for a moment; the choice is global in torch."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
