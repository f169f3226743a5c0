"""Rotary tables, with the frequency rules of transformers (default, linear, llama3, yarn)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.native import block
from foretoken.models.native.layer import Shape

SERVED = ("default", "linear", "llama3", "yarn")
_FIRST = 1024  # positions; the table doubles from here


class Table:
    """cos and signed sin of each position, of as many as are in use."""

    def __init__(
        self,
        config: Any,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        kind: str | None = None,
    ) -> None:
        """kind: of the layers that it is for, where these have rotary parameters of their own.
        Raises `ForetokenError` where the configuration's rope_parameters can't be used."""
        self.dtype, self.device = dtype, device
        self._frequency, self._scaling = _frequency(config, shape.head_dim, kind)
        self._most = shape.max_length + 1
        # Those that were grown stay: a captured graph goes on reading the one that it began with.
        self._made = [self._rows(0, min(_FIRST, self._most))]

    def upto(self, length: int) -> Tensor:
        """[length or more, 2, head_dim]: cos, and sin with its first half negated.

        With these, rotate(x) = x·cos + roll(x, head_dim / 2)·sin. The table is computed in float32
        whatever the model's dtype, as transformers does; a float64 table differs by 3e-5.
        """
        rows = self._made[-1]
        return rows if len(rows) >= length else self._grown(rows, length)

    @torch.inference_mode(False)  # training reads it too
    def _grown(self, rows: Tensor, length: int) -> Tensor:
        end = max(length, min(2 * len(rows), self._most))
        grown = torch.cat((rows, self._rows(len(rows), end)))
        self._made.append(grown)
        return grown

    @torch.inference_mode(False)
    def _rows(self, start: int, end: int) -> Tensor:
        positions = torch.arange(start, end, dtype=torch.float)
        angle = positions[:, None] * self._frequency  # [T, W / 2]
        cos, sin = angle.cos() * self._scaling, angle.sin() * self._scaling
        both = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        return both.to(self.device, self.dtype)


def _frequency(config: Any, head_dim: int, kind: str | None) -> tuple[Tensor, float]:
    """Angle a position [W / 2] in float32, and what cos and sin are multiplied by."""
    rope = block.rope_of(config, kind)
    try:
        if rope["rope_type"] == "default":
            steps = torch.arange(0, head_dim, 2, dtype=torch.float)
            frequency, scaling = 1.0 / (rope["rope_theta"] ** (steps / head_dim)), 1.0
        else:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            frequency, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, layer_type=kind)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _unusable(rope) from error
    frequency, scaling = frequency.float(), float(scaling)
    if frequency.shape != (head_dim // 2,) or not math.isfinite(frequency.sum() + scaling):
        raise _unusable(rope)
    return frequency, scaling


def _unusable(rope: Any) -> ForetokenError:
    return ForetokenError(
        f"rope_parameters of the model's configuration, {rope!r:.200}, give no rotary positions; "
        "correct config.json, or fetch the checkpoint again."
    )


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
