"""Rotary tables, with the frequency rules of transformers (default, linear, llama3, yarn)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
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


def scaled(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Frequencies [head_dim / 2] in float32, and what cos and sin are multiplied by."""
    return _scaled(head_dim, theta, tuple(sorted(scaling.items())))


@lru_cache
def _scaled(
    head_dim: int, theta: float, scaling: tuple[tuple[str, Any], ...]
) -> tuple[Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = dict(scaling)
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        rope_parameters={"rope_theta": theta, **settings},
        max_position_embeddings=settings.get("original_max_position_embeddings", 2048),
    )
    frequency, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config)
    return frequency.float(), float(scale)
