"""Weights reordered once for oneDNN's kernels: checking eight tokens costs little more than one.

The reordered weight is opaque and the original is released (pack layer by layer, and only one
layer is ever held twice). A row alone goes through another kernel than a row among others and
differs by rounding (3e-6 relative, float32), so near ties can flip; the row's neighbours' values
never matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.models.backends import Linear

_TUNED_ROWS = 8  # the batch the blocked layout is chosen for; any number of rows is accepted


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return (
        device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and bool(torch.backends.mkldnn.is_available())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TUNED_ROWS)
    run = torch.ops.mkldnn._linear_pointwise.default

    def linear(x: Tensor) -> Tensor:
        result: Tensor = run(x, packed, bias, "none", [], "")
        return result

    return linear
