"""Whole passes through torch.compile: what lies between the products becomes a few fused loops.

The products and the attention stay what they are, called from the compiled code, so this goes with
any linear backend. What is compiled works on each token alone; a pass is filled up to one of a few
token counts, and the filling goes neither into a product nor into the attention.

Compiled once, when the model is loaded or, as `compiled_in_background`, in a thread during the
first requests; stored in the cache folder's inductor/ (or TORCHINDUCTOR_CACHE_DIR). A pass of more
tokens, or one that comes before its size is ready, runs as it would without.

Legend: B rows, T tokens, N = B·T, P the count N is filled up to, D width, H query heads,
K key/value heads, W head width.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import tempfile
import threading
import types
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.machine import cache_folder
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed, chain_feed
from foretoken.models.native.layer import Layer, Linear
from foretoken.models.native.transformer import Transformer

_log = logging.getLogger(__name__)

BUCKETS = (1, 4, 16, 64)

Traced = Callable[..., Tensor]
"""States, then cos and signed sin of each rotary table, [1, P, …] -> states."""


@dataclasses.dataclass(slots=True)
class _Pass:
    """What the operators below, which the compiler sees only from outside, work with."""

    layers: list[Layer]
    feed: Feed
    cache: KVCache

    @property
    def count(self) -> int:
        return self.feed.tokens.numel()


_current: ContextVar[_Pass] = ContextVar("pass")


def _linear(x: Tensor, layer: int, name: str, outputs: int) -> Tensor:
    """[1, P, in] -> [1, P, out]"""
    now = _current.get()
    run: Linear = getattr(now.layers[layer], name)
    return _filled(run(x[:, : now.count]), x.shape[1])


def _mix(turned: Tensor, layer: int, outputs: int) -> Tensor:
    """[1, P, H + 2K, W] -> [1, P, H·W]"""
    now = _current.get()
    rows = turned[:, : now.count].view(*now.feed.tokens.shape, *turned.shape[2:])
    mixed = now.layers[layer].mix(rows, now.cache.layer[layer], now.feed)
    return _filled(mixed.reshape(1, now.count, -1), turned.shape[1])


def _filled(x: Tensor, count: int) -> Tensor:
    """[1, N, …] -> [1, count, …], zeros after."""
    if x.shape[1] == count:
        return x
    return torch.cat((x, x.new_zeros(1, count - x.shape[1], *x.shape[2:])), 1)


def _define(name: str, arguments: str, run: Callable[..., Tensor]) -> None:
    _library.define(f"{name}(Tensor x, {arguments}, int outputs) -> Tensor")
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"foretoken::{name}",
        lambda x, *rest: x.new_empty(1, x.shape[1], rest[-1]),
        lib=_library,
    )


_library = torch.library.Library("foretoken", "FRAGMENT")
_define("linear", "int layer, str name", _linear)
_define("mix", "int layer", _mix)


class Compiled:
    """A `Transformer.runner`."""

    def __init__(self, model: Transformer, *, background: bool = False) -> None:
        """Compiles every bucket, at once or in a thread. Raises `ForetokenError` where it can't."""
        self._model = model
        self._ready: dict[int, Traced] = {}
        _store_results()
        self.thread = threading.Thread(target=self._compile_quietly, daemon=True)
        if background:
            self.thread.start()
        else:
            self._compile()

    def __call__(self, states: Tensor, feed: Feed, cache: KVCache) -> Tensor:
        count = feed.tokens.numel()
        bucket = next((size for size in BUCKETS if size >= count), None)
        if bucket not in self._ready:
            return self._model.run(states, feed, cache, range(2 * self._model.layers))
        return self._run(self._ready[bucket], bucket, states, feed, cache)

    def prepare(self, cache: KVCache) -> None:
        """Nothing: what is compiled does not know the cache."""

    def _run(self, run: Traced, bucket: int, states: Tensor, feed: Feed, cache: KVCache) -> Tensor:
        count = feed.tokens.numel()
        rotary = self._model.rotary(feed.positions.reshape(1, -1), feed.reach)
        given = (states.reshape(1, count, -1), *(x for pair in rotary for x in pair))
        flat = [_filled(x, bucket) for x in given]
        token = _current.set(_Pass(self._model.stack, feed, cache))
        try:
            return run(*flat)[:, :count].reshape(states.shape)
        finally:
            _current.reset(token)

    def _compile(self) -> None:
        function = self._traced()
        cache = self._model.new_cache(1, BUCKETS[-1])
        with torch.inference_mode():
            for bucket in BUCKETS:
                feed = chain_feed(cache, [0], [[0] * bucket])
                try:  # the first call compiles
                    run = _compiled(function, bucket)
                    self._run(run, bucket, self._model.embed(feed.tokens), feed, cache)
                except Exception as error:
                    raise ForetokenError(
                        "Backend 'compiled' needs a compiler that torch.compile can use (g++ on a "
                        f"CPU), and it failed ({type(error).__name__}); install one, or use "
                        "backend='auto'."
                    ) from error
                self._ready[bucket] = run

    def _compile_quietly(self) -> None:
        try:
            self._compile()
        except ForetokenError as error:
            _log.warning("%s", error)

    def _traced(self) -> Traced:
        """All layers, on rows that are tokens [1, P, …], with the operators above in their places.

        It closes over all that it needs, so that `_compiled` can give each size a function.
        """
        model = copy.copy(self._model)
        model.stack = [_opaque(layer, i, self._model) for i, layer in enumerate(model.stack)]
        layers: Any = types.SimpleNamespace(layer=list(range(model.layers)))
        feed: Any = None

        def run(states: Tensor, *turns: Tensor) -> Tensor:
            rotary = list(zip(turns[::2], turns[1::2], strict=True))
            return model.through(states, rotary, feed, layers)

        return run


def _store_results() -> None:
    """Store results for good, unless the user names a folder; torch's is a temporary one."""
    temporary = str(Path(tempfile.gettempdir(), "torchinductor_"))  # with a user's name, if any
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", temporary).startswith(temporary):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")


def _compiled(function: Traced, bucket: int) -> Traced:
    """A copy of the function, compiled by its first call and never again.

    torch.compile stores its results by code object and asks before every call which of them fits;
    each size has a code object of its own and exactly one result, so nothing is asked.
    """
    code = function.__code__.replace(co_name=f"pass_of_{bucket}")
    copied = types.FunctionType(
        code, function.__globals__, code.co_name, None, function.__closure__
    )
    unasked: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    run: Traced = torch.compile(copied, fullgraph=True, dynamic=False, options=unasked)
    return run


def _opaque(layer: Layer, index: int, model: Transformer) -> Layer:
    """The layer with its products and its attention after the operators."""
    shape, device = model.shape, model.device

    def outputs(linear: Linear, inputs: int) -> int:
        return linear(torch.zeros(1, inputs, dtype=model.dtype, device=device)).shape[-1]

    def after(name: str, count: int) -> Linear:
        run = torch.ops.foretoken.linear
        return lambda x: run(x, index, name, count)

    mixed, both = shape.heads * shape.head_dim, outputs(layer.gate_up, shape.width)
    mix = torch.ops.foretoken.mix
    return dataclasses.replace(
        layer,
        qkv=after("qkv", outputs(layer.qkv, shape.width)),
        mix=lambda turned, *_: mix(turned, index, mixed),
        out=after("out", shape.width),
        gate_up=after("gate_up", both),
        down=after("down", shape.width),
    )
