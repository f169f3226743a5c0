"""torch's own linear layer: any dtype, any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.models.native.layer import Linear


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return True


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    def linear(x: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    return linear
