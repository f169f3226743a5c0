"""RMSNorm (Zhang and Sennrich 2019, equation 4): x · weight / sqrt(mean(x²) + eps).

Legend: D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Norm = Callable[[Tensor], Tensor]
"""[..., D] -> [..., D]"""


def make(weight: Tensor, eps: float) -> Norm:
    """The norm with this weight [D]; in float32 for a float64 model, as transformers does."""
    size = tuple(weight.shape)
    if weight.dtype == torch.float64:
        return lambda x: weight * F.rms_norm(x.float(), size, None, eps).to(x.dtype)
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return lambda x: F.rms_norm(x, size, weight, eps)
    return Fast(weight, eps)


def around_one(stored: Tensor, eps: float, dtype: torch.dtype) -> Norm:
    """The norm whose weight is 1 + `stored` [D]; all in float32, as transformers' Gemma does, so
    that a weight that is nearly 1 isn't rounded to it in half precision."""
    weight, size = 1.0 + stored.float(), tuple(stored.shape)
    if dtype == torch.float32:
        return make(weight, eps)
    return lambda x: (F.rms_norm(x.float(), size, None, eps) * weight).to(x.dtype)


class Fast:
    """float32 on a CPU. torch's norm is eight small operations there, half of a small model's
    overhead; with the D of the mean moved into weight and eps five do."""

    __slots__ = ("_floor", "_scaled", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        size = weight.shape[0]
        self._scaled, self._floor = weight * math.sqrt(size), torch.tensor(eps * size)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * self._scaled).mul_(torch.addcmul(self._floor, length, length).rsqrt_())
