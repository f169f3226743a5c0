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
    # torch's own is eight small operations on a CPU, half of a small model's overhead; with the
    # D of the mean moved into weight and eps five do.
    scaled, floor = weight * math.sqrt(size[0]), torch.tensor(eps * size[0])

    def norm(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * scaled).mul_(torch.addcmul(floor, length, length).rsqrt_())

    return norm
