"""All layers of a pass in one call of `kernels.cpp`.

A layer run by torch is some twenty small operations, each of a few microseconds whatever its size:
a pass of a small model is hardly anything else. Here norms, products, rotation, attention and
SwiGLU of all layers are one call, in which the threads meet at barriers. Models whose matrices are
too small to be shared run on one thread.

As in `panels`, a token's numbers have the same bits alone and among others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.native import norm
from foretoken.models.native.backends import kernels
from foretoken.models.native.backends.panels import Matrix, Product
from foretoken.models.native.layer import Layer, Shape

_place, _number = ctypes.c_void_p, ctypes.c_long


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _place) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        ("mask", _number),
    )


_PLACES = ("states", "cache", "rope", "positions", "slots", "starts", "seen")
_NUMBERS = (
    "rows",
    "width",
    "states_width",
    "heads",
    "kv_heads",
    "head_width",
    "feed",
    "length",
    "slots_",
    "cells",
)


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _place) for name in _PLACES),
        *((name, _number) for name in _NUMBERS),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
    )


def whole_for(shape: Shape, layers: Seq[Layer], rope: Tensor) -> Whole | None:
    """What runs these layers, or None where the loops can't run some part of them; `rope` has the
    model's dtype."""
    loops = kernels.library()
    if loops is None or rope.dtype != torch.float32 or rope.device.type != "cpu":
        return None
    width, heads = loops.width(), shape.heads + 2 * shape.kv_heads
    fits = shape.head_dim % (width // 2) == 0 and heads * shape.head_dim % width == 0
    return Whole(shape, layers, rope) if fits and all(map(_served, layers)) else None


def _served(layer: Layer) -> bool:
    products = (layer.qkv, layer.out, layer.gate_up, layer.down)
    norms = (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
    return all(isinstance(x, Product) for x in products) and all(
        x is None or isinstance(x, norm.Fast) for x in norms
    )


class Whole:
    """Runs the sub-layers of one model."""

    def __init__(self, shape: Shape, layers: Seq[Layer], rope: Tensor) -> None:
        self._shape, self._rope = shape, rope
        self._windows = list(dict.fromkeys(map(_window, layers)))
        self._stack = (_Layer * len(layers))(*map(self._layer, layers))
        self._layers = list(layers)  # whose memory the structures point to
        first: Any = layers[0]
        self._feed, self._eps = first.down.inputs, first.attention_norm.eps
        self._scale = shape.head_dim**-0.5
        self._shared = first.gate_up.shared
        self._masks = _place * len(self._windows)
        loops = kernels.library()
        assert loops is not None
        self._run = loops.layers

    def _layer(self, layer: Any) -> _Layer:
        norms = (layer.attention_norm, layer.q_norm, layer.k_norm, layer.mlp_norm)
        products = (layer.qkv, layer.out, layer.gate_up, layer.down)
        return _Layer(
            *(None if x is None else x.weight.data_ptr() for x in norms),
            *(x.matrix for x in products),
            self._windows.index(_window(layer)),
        )

    def __call__(self, states: Tensor, feed: Feed, cache: KVCache, first: int, last: int) -> Tensor:
        """[B, T, D] -> [B, T, D] after the sub-layers from `first` on before `last`."""
        states = states.clone(memory_format=torch.contiguous_format)
        batch, width, size = states.shape
        shape, count = self._shape, len(feed.slots)
        seen = [feed.seen(window) for window in self._windows]
        masks = self._masks(*(None if x is None else x.data_ptr() for x in seen))
        slots, starts = ((ctypes.c_int64 * count)(*x) for x in (feed.slots, feed.starts))
        positions = feed.positions.contiguous()
        given = _Pass(
            states.data_ptr(),
            cache.data.data_ptr(),
            self._rope.data_ptr(),
            positions.data_ptr(),
            ctypes.addressof(slots),
            ctypes.addressof(starts),
            ctypes.addressof(masks),
            batch,
            width,
            size,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            self._feed,
            feed.length,
            cache.data.shape[2],
            cache.data.shape[4],
            self._scale,
            self._eps,
        )
        threads = torch.get_num_threads() if self._shared else 1
        self._run(ctypes.addressof(given), self._stack, first, last, threads)
        return states


def _window(layer: Layer) -> int | None:
    mix: Any = layer.mix
    assert isinstance(mix, partial)
    window: int | None = mix.keywords["window"]
    return window


def spans(sublayers: Iterable[int]) -> list[tuple[int, int]]:
    """[first, last) of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for at in sublayers:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs
