"""Rotary tables, with the frequency rules of transformers (default, linear, llama3, yarn)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SERVED = ("default", "linear", "llama3", "yarn")


def table(
    config: Any, head_dim: int, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """[length, 2, head_dim]: cos, and sin with its first half negated.

    With these, rotate(x) = x·cos + roll(x, head_dim / 2)·sin. The table is computed in float32
    whatever the model's dtype, as transformers does; a float64 table differs by 3e-5.
    """
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        steps = torch.arange(0, head_dim, 2, dtype=torch.float)
        frequency, scaling = 1.0 / (rope["rope_theta"] ** (steps / head_dim)), 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequency, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    angle = torch.arange(length, dtype=torch.float)[:, None] * frequency.float()  # [length, W / 2]
    cos, sin = angle.cos() * scaling, angle.sin() * scaling
    both = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    return both.to(device, dtype)
