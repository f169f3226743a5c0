"""Parts of a trained decoder layer, named as in Llama: shape, attention, feed-forward.

Legend: B rows, T tokens, D width, H heads, K key/value heads, W head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.models.cache import KV
from foretoken.models.feed import Feed
from foretoken.models.native import attention, rope

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [B, T, H, W], keys and values [B, T, K, W] -> [B, T, H·W]."""


@dataclass(frozen=True)
class LayerShape:
    """The numbers of a decoder layer. reads: width of what the attention reads; outer: width of the
    residual stream; head_width: of a head, if it isn't outer / heads; rope_scaling: as transformers
    writes it; qk_norm: whether queries and keys are normed, head by head; qkv_bias, o_bias: whether
    queries, keys and values have biases, and the attention's output."""

    outer: int
    reads: int
    heads: int
    kv_heads: int
    intermediate: int
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    norm_eps: float = 1e-6
    head_width: int | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.head_width or self.outer // self.heads

    @classmethod
    def for_width(
        cls,
        width: int,
        wide: int,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        **rest: Any,
    ) -> LayerShape:
        """A layer of this width whose attention reads `wide` times it. Defaults: heads of width 48
        or so, as many key/value heads, a feed-forward of 8/3 of the width; rest: the other
        fields."""
        heads, intermediate = heads or heads_for(width), intermediate or 8 * width // 3
        return cls(width, wide * width, heads, kv_heads or heads, intermediate, **rest)


def heads_for(width: int) -> int:
    """How many heads a layer has by default: their width is even and about 48."""
    most = max(1, width // 48)
    return next((h for h in range(most, 0, -1) if width % (2 * h) == 0), 1)


def of_each(given: Any, layers: int) -> list[Any]:
    """What each layer has, where a list says so, or one value for all. Raises `ValueError` for a
    list of another length."""
    each = list(given) if isinstance(given, (list, tuple)) else [given] * layers
    if len(each) != layers:
        raise ValueError(f"there are {layers} layers, and numbers for {len(each)}")
    return each


def of_all(each: list[Any]) -> Any:
    """What all layers have, or the list where they differ."""
    return each[0] if len(set(each)) == 1 else each


class Attention(nn.Module):
    """The four projections and the rotary embedding."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.layer_shape = shape
        inner, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.reads, inner, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(shape.reads, kv_width, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(shape.reads, kv_width, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(inner, shape.outer, bias=shape.o_bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(shape.head_dim, shape.norm_eps) if shape.qk_norm else nn.Identity()
            for _ in range(2)
        )

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        rotary = rotary_angles(self.layer_shape, positions, x)
        out: Tensor = self.o_proj(attend(self.queries(x, rotary), *self.keys(x, rotary)))
        return out

    def queries(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """[B, T, H, W]"""
        return rotate(self.q_norm(self._heads(self.q_proj(x))), *rotary)

    def keys(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values [B, T, K, W]."""
        keys = rotate(self.k_norm(self._heads(self.k_proj(x))), *rotary)
        return keys, self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, H·W] -> [B, T, H, W]"""
        return x.view(*x.shape[:-1], -1, self.layer_shape.head_dim)


def rotary_angles(decoder: LayerShape, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin at positions [B, T], [B, T, 1, W] each, of the dtype of `like`."""
    size = decoder.head_dim
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    if decoder.rope_scaling:
        frequency, scale = rope.scaled(size, decoder.rope_theta, decoder.rope_scaling)
        frequency = frequency.to(like.device, wide)
    else:
        steps = torch.arange(0, size, 2, dtype=wide, device=like.device) / size
        frequency, scale = decoder.rope_theta**-steps, 1.0
    angle = positions[..., None].to(wide) * frequency
    angle = torch.cat((angle, angle), -1)[..., None, :]
    return (angle.cos() * scale).to(like.dtype), (angle.sin() * scale).to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys [B, T, H, W] rotated by the angles of `rotary_angles`."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Mlp(nn.Module):
    """Llama's gated feed-forward."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, intermediate, bias=False)
        self.up_proj = nn.Linear(width, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def attend_cached(layer: KV, feed: Feed, window: int | None = None) -> Attend:
    """Attention of one pass over a layer's cache, to which it writes. window: how many tokens one
    sees, itself among them."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention.write(layer, torch.stack((k, v), 2), feed)
        return attention.attend(q, layer, feed, q.shape[-1] ** -0.5, window)

    return attend
