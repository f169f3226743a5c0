"""int4 weights, on a GPU only; see `weight_only.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.native.backends import int8, weight_only
from foretoken.models.native.layer import Linear


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cuda" and dtype == torch.bfloat16


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    """A matrix whose inputs don't divide into groups that share a scale is stored as int8."""
    if weight.shape[1] % weight_only.GROUP:
        return int8.make(weight, bias)
    narrow = weight_only.int4(weight)
    return lambda x: F.linear(x, narrow, bias)
