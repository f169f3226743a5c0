"""All layers of a pass in one call of `kernels.cpp`.

A layer run by torch is some twenty small operations, each of a few microseconds whatever its size:
a pass of a small model is hardly anything else. Here norms, products, rotation, attention and gated
feed-forward of all layers are one call, in which the threads meet at barriers. Models whose
matrices are too small to be shared run on one thread.

As in `panels`, a token's numbers have the same bits alone and among others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.native import norm
from foretoken.models.native.backends import kernels
from foretoken.models.native.backends.panels import Matrix, Product
from foretoken.models.native.layer import Layer, Shape
from foretoken.models.native.rope import Table

_place, _number = ctypes.c_void_p, ctypes.c_long


_NORMS = ("attention_norm", "q_norm", "k_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm")
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _place) for name in _NORMS),
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _number) for name in ("mask", "rope", "gelu")),
        *((name, ctypes.c_float) for name in ("scale", "cap")),
    )


_Tensors = ctypes.Array[ctypes.c_void_p]
_PLACES = ("states", "cache", "ropes", "positions", "slots", "starts", "counts", "seen")
_NUMBERS = (
    "rows",
    "tokens",
    "states_width",
    "heads",
    "kv_heads",
    "head_width",
    "feed",
    "length",
    "slots_",
    "cells",
    "limit",
    "kind",
    "turns",
)


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _place) for name in _PLACES),
        *((name, _number) for name in _NUMBERS),
        ("eps", ctypes.c_float),
    )


def whole_for(shape: Shape, layers: Seq[Layer], ropes: Seq[Table]) -> Whole | None:
    """What runs these layers, or None where the loops can't run some part of them; the `ropes` have
    the model's dtype."""
    if not all(map(served, layers)):  # else nothing need be built
        return None
    if not kernels.supports(ropes[0].dtype, ropes[0].device):
        return None
    loops = kernels.library()
    assert loops is not None
    width, heads = loops.width(), shape.heads + 2 * shape.kv_heads
    fits = shape.head_dim % (width // 2) == 0 and heads * shape.head_dim % width == 0
    return Whole(shape, layers, ropes) if fits else None


def served(layer: Layer) -> bool:
    """Whether all of its parts are the loops'."""
    products = (layer.qkv, layer.out, layer.gate_up, layer.down)
    return (
        all(isinstance(x, Product) for x in products)
        and all(x is None or isinstance(x, norm.Fast) for x in _norms(layer))
        and layer.activation in _ACTIVATIONS
    )


def _norms(layer: Layer) -> list[Any]:
    return [getattr(layer, name) for name in _NORMS]


class Whole:
    """Runs the sub-layers of one model, or of those of its layers that begin `at` one."""

    def __init__(self, shape: Shape, layers: Seq[Layer], ropes: Seq[Table], at: int = 0) -> None:
        for layer in layers:
            _check(layer, shape)
        self._shape, self._ropes, self._at = shape, list(ropes), at
        self._windows = list(dict.fromkeys(layer.window for layer in layers))
        self._stack = (_Layer * len(layers))(*map(self._layer, layers))
        self._layers = list(layers)  # whose memory the structures point to
        first: Any = layers[0]
        self._feed, self._eps = first.down.inputs, first.attention_norm.eps
        self._shared = first.gate_up.shared
        self._masks = _place * len(self._windows)
        self._caches: WeakKeyDictionary[KVCache, _Tensors] = WeakKeyDictionary()
        loops = kernels.library()
        assert loops is not None
        self._run = loops.layers

    def _layer(self, layer: Any) -> _Layer:
        products = (layer.qkv, layer.out, layer.gate_up, layer.down)
        return _Layer(
            *(None if x is None else x.weight.data_ptr() for x in _norms(layer)),
            *(x.matrix for x in products),
            self._windows.index(layer.window),
            layer.rope,
            _ACTIVATIONS.index(layer.activation),
            layer.mix.keywords["scale"],
            layer.mix.keywords["cap"] or 0.0,
        )

    def __call__(self, states: Tensor, feed: Feed, cache: KVCache, first: int, last: int) -> Tensor:
        """[B, T, D] -> [B, T, D] after the sub-layers from `first` on before `last`; padding costs
        nothing, and its states are 0.

        Raises `ForetokenError` where these tensors don't fit the model and each other.
        """
        seen = [feed.seen(window) for window in self._windows]
        self._check(states, feed, cache, seen)
        batch, width, size = states.shape
        own, positions = feed.packed(states), feed.packed(feed.positions)
        seen = [None if x is None else feed.packed(x) for x in seen]
        if not feed.ragged:  # else they are a copy already
            own = own.clone(memory_format=torch.contiguous_format)
        masks = self._masks(*(None if x is None else x.data_ptr() for x in seen))
        lists = (feed.slots, feed.starts, feed.counts or [width] * batch)
        slots, starts, counts = ((ctypes.c_int64 * batch)(*x) for x in lists)
        positions, tables = positions.contiguous(), [t.upto(feed.reach) for t in self._ropes]
        ropes = (_place * len(tables))(*(table.data_ptr() for table in tables))
        shape = self._shape
        given = _Pass(
            own.data_ptr(),
            ctypes.addressof(self._tensors(cache)),
            ctypes.addressof(ropes),
            positions.data_ptr(),
            ctypes.addressof(slots),
            ctypes.addressof(starts),
            ctypes.addressof(counts),
            ctypes.addressof(masks),
            batch,
            len(own),
            size,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            self._feed,
            feed.length,
            *cache.layer[0].keys.shape[0:3:2],
            feed.limit,
            kernels.STORED.index(cache.dtype),
            min(map(len, tables)),
            self._eps,
        )
        threads = torch.get_num_threads() if self._shared else 1
        first, last = first - 2 * self._at, last - 2 * self._at
        if self._run(ctypes.addressof(given), self._stack, first, last, threads):
            raise _misfit("a pass's slots, places or positions lie outside of the cache or model")
        return feed.unpacked(own)

    def _check(self, states: Tensor, feed: Feed, cache: KVCache, seen: Seq[Tensor | None]) -> None:
        rows, mask = (len(feed.slots), len(feed.starts)), (*states.shape[:2], feed.length)
        if states.shape[2] != self._shape.width or states.dtype != _FLOAT:
            raise _misfit(f"states of {states.dtype} have width {states.shape[2]}")
        if rows != (len(states),) * 2 or feed.positions.shape != states.shape[:2]:
            raise _misfit(f"a pass of {tuple(states.shape[:2])} tokens has {rows} rows")
        if any(x is not None and tuple(x.shape) != mask for x in seen):
            raise _misfit(f"a mask is not {mask}")

    def _tensors(self, cache: KVCache) -> _Tensors:
        """Where each layer's keys and values stand, once they have been compared with the model."""
        if (known := self._caches.get(cache)) is not None:
            return known
        shape, own = self._shape, cache.layer[self._at : self._at + len(self._layers)]
        tensors = [tensor for layer in own for tensor in layer]
        have = {(len(tensors), *x.shape[1::2], x.is_contiguous()) for x in tensors}
        need = (2 * len(self._layers), shape.kv_heads, shape.head_dim, True)
        if have != {need} or cache.dtype not in kernels.STORED:
            raise _misfit(f"a cache of {cache.dtype} has {have}, and the model {need}")
        places = (_place * len(tensors))(*(x.data_ptr() for x in tensors))
        return self._caches.setdefault(cache, places)


_FLOAT = torch.float32


def _check(layer: Any, shape: Shape) -> None:
    """Raises `ForetokenError` where a layer's tensors don't fit the shape and each other."""
    width, mixed = shape.width, shape.heads * shape.head_dim
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    feed = layer.down.inputs
    need = ((qkv, width), (width, mixed), (2 * feed, width), (width, feed))
    products = (layer.qkv, layer.out, layer.gate_up, layer.down)
    have = tuple((x.outputs, x.inputs) for x in products)
    if have != need:
        raise _misfit(f"a layer's products are {have} and must be {need}")
    for name, given in zip(_NORMS, _norms(layer), strict=True):
        size = shape.head_dim if name in ("q_norm", "k_norm") else width
        if given is not None and tuple(given.weight.shape) != (size,):
            raise _misfit(f"a norm doesn't have {size} weights")


def _misfit(what: str) -> ForetokenError:
    return ForetokenError(f"The compiled loops can't run this: {what}; use backend='plain'.")


def spans(sublayers: Iterable[int]) -> list[tuple[int, int]]:
    """[first, last) of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for at in sublayers:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs
