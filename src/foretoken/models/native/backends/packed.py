"""Weights reordered once for oneDNN's kernels: checking eight tokens costs little more than one.

The reordered weight is opaque and the original is released (pack layer by layer, and only one
layer is ever stored twice). A row alone goes through another kernel than a row among others and
differs by rounding (3e-6 relative, float32), so near ties can flip; the row's neighbours' values
never matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.models.native.backends import plain
from foretoken.models.native.layer import Linear

_TUNED_ROWS = 8  # the batch the blocked layout is chosen for; any number of rows is accepted
# Below this many weights a call's fixed cost (about 10 µs) is more than the blocked kernel saves:
# 176×88 at 1 and 5 rows: plain 2 and 4 µs, packed 11 and 11; 288×384: 6 and 22, 15 and 16.
_SMALLEST = 48 * 1024


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False  # oneDNN's bfloat16 wants newer processors
    return dtype in (torch.float32, torch.bfloat16) and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    if weight.numel() < _SMALLEST:
        return plain.make(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TUNED_ROWS)
    run = torch.ops.mkldnn._linear_pointwise.default

    def linear(x: Tensor) -> Tensor:
        result: Tensor = run(x, packed, bias, "none", [], "")
        return result

    return linear
