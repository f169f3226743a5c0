"""A model larger than memory: the layers that don't fit are read from its files when they run.

The first layers stay, as many as fit, and the others come one after the other into the same memory,
while a thread reads the one after. Each is made from the file's bytes as it was when the model was
loaded, so that a pass has the bits of the model in memory. After the last layer the thread goes on
with the first that doesn't stay: the target's layers load while the drafter drafts. To read further
ahead gains nothing: a layer's place is worth more to a layer that stays.

A pass then takes as long as its bytes take to arrive, for one token or for sixty. Source: Xu et al.
2023 (LLMCad), section 3.1: verification is bound by what it reads, and checks many tokens for one
reading of the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache
from foretoken.models.feed import Feed
from foretoken.models.native.backends import pages, split
from foretoken.models.native.backends.whole import Whole, served, whole_for
from foretoken.models.native.check import Stored
from foretoken.models.native.layer import Layer, Shape
from foretoken.models.native.rope import Table
from foretoken.models.reads import Place, Reads, Rows, buffer


class Readable(Protocol):
    """A checkpoint whose tensors can be read as bytes, and made of them later."""

    def place(self, name: str) -> Place:
        """Where a tensor's bytes lie; KeyError where there is none."""
        ...

    def decoded(self, name: str, data: memoryview) -> Any:
        """The tensor of this name, made of its bytes, which it may stand in."""
        ...


class Made(NamedTuple):
    """A layer that was made. nbytes: of its matrices; passing: that making it took besides."""

    layer: Layer
    parameters: int
    nbytes: int
    passing: int


Make = Callable[[int, Stored], Made]
"""A layer's number and what reads its tensors -> the layer, in which nothing of them is shared."""


class EmbeddingRows:
    """An embedding from a table [V, D] that stays in its file: a pass reads its tokens' rows."""

    nbytes = 0

    def __init__(self, place: Place, table: Tensor) -> None:
        """table: what stands there."""
        self._rows, self._dtype = Rows(place, len(table)), table.dtype

    def __call__(self, tokens: Tensor) -> Tensor:
        """Raises IndexError for a token that isn't there, and `ForetokenError` where the file can't
        be read any more."""
        return self._rows(tokens).view(self._dtype).view(*tokens.shape, -1)


class _Ahead(NamedTuple):
    """A layer that is being read."""

    layer: int
    parts: Future[dict[str, memoryview]]


class Offloaded:
    """Layers of which the first `kept` stay in memory. bytes_so_far: read from files so far, for
    layers that were needed or were read ahead in vain; parameters, nbytes: of all layers."""

    def __init__(
        self,
        checkpoint: Readable,
        as_kept: Callable[[Any], Any],
        weights_memory: int,
        advance: Callable[[], None],
    ) -> None:
        """as_kept: what the backend does with a tensor of a checkpoint. weights_memory: bytes that
        all weights may take, those that are being read and made included. advance: called for each
        tensor while the model is loaded."""
        self._checkpoint, self._as_kept, self._memory = checkpoint, as_kept, weights_memory
        self._advance = advance
        self.kept: list[Layer] = []
        self.bytes_so_far = self.parameters = self.nbytes = 0
        self._reader = ThreadPoolExecutor(1, "offloaded-layers")
        self._ahead: _Ahead | None = None
        self._now: tuple[int, Layer] | None = None
        self._sizes: list[int] = []
        self._turn, self._passing, self._by_loops = 0, 0, True

    def embedding(self, name: str, table: Tensor) -> EmbeddingRows | None:
        """The embedding of this name, which `table` is; None where the file has it in another form,
        so that its rows can't be taken as they are."""
        place = self._checkpoint.place(name)
        return EmbeddingRows(place, table) if place.size == table.nbytes else None

    def layers(self, make: Make, names: Seq[Seq[str]], ends: int) -> list[Layer]:
        """All layers, each of which has tensors of these names; the products of those that don't
        stay read them when they are called.

        ends: bytes of embedding and head, as far as they are in memory. Raises KeyError with the
        name of a tensor that isn't there, and `ForetokenError` where the memory is too small for a
        single layer.
        """
        self._make, self._places = make, [self._sorted(of_layer) for of_layer in names]
        self._reads = Reads({place.file for of in self._places for place in of.values()})
        self._buffers = [buffer(self._places), buffer(self._places)]
        lent = [self._placed(index, ends) for index in range(len(names))]
        if len(self.kept) == len(names):
            self._buffers, self._now = [], None
        return self.kept + lent[len(self.kept) :]

    @property
    def pass_bytes(self) -> int:
        """Read from files in a pass through all layers. A single layer that doesn't stay is read
        once: nothing takes its place."""
        coming = self._places[len(self.kept) :]
        return sum(map(_size, coming)) if len(coming) > 1 else 0

    def layer(self, index: int) -> Layer:
        """A layer, in memory until the next one is asked for. Raises `ForetokenError` where it
        can't be read."""
        if index < len(self.kept):
            return self.kept[index]
        if self._now is None or self._now[0] != index:
            self._now = index, self._made(index).layer
        return self._now[1]

    def runs(self, shape: Shape, layers: list[Layer], ropes: Seq[Table]) -> Loops | None:
        """What runs these layers by the compiled loops, where these run all of the model's."""
        if len(self.kept) == len(layers):
            return whole_for(shape, layers, ropes)
        assert self._now is not None  # the last one, which was made just now
        if not self._by_loops or whole_for(shape, [self._now[1]], ropes) is None:
            return None
        return LayerByLayer(self, shape, ropes)

    def _sorted(self, names: Seq[str]) -> dict[str, Place]:
        """The tensors' places, in the order of the file."""
        places = {name: self._checkpoint.place(name) for name in names}
        return dict(sorted(places.items(), key=lambda item: item[1]))

    def _placed(self, index: int, ends: int) -> Layer:
        """Make a layer for the first time, and keep it if it fits; the layer as it is when it
        doesn't stay."""
        made = self._made(index)
        self._now = index, made.layer
        for _ in self._places[index]:
            self._advance()
        self.parameters += made.parameters
        self.nbytes += made.nbytes
        self._by_loops &= served(made.layer)
        self._sizes.append(made.nbytes)
        self._passing = max(self._passing, made.passing)
        need = ends + 2 * len(self._buffers[0]) + max(self._sizes) + self._passing
        if need > self._memory:
            raise ForetokenError(
                f"weights_memory is {self._memory} bytes, and this model needs {need} at least: "
                f"{ends} for its embedding and head, and room for the layers that are being read; "
                "raise it, or take a smaller or quantised model."
            )
        if len(self.kept) == index:
            self.kept.append(made.layer)
        while need + sum(self._sizes[: len(self.kept)]) > self._memory:
            self.kept.pop()  # also earlier ones, where this one needs more room to be made
        return self._lent(index, made.layer)

    def _lent(self, index: int, layer: Layer) -> Layer:
        """The layer without its matrices."""
        return replace(
            layer,
            qkv=lambda x: self.layer(index).qkv(x),
            out=lambda x: self.layer(index).out(x),
            gate_up=lambda x: self.layer(index).gate_up(x),
            down=lambda x: self.layer(index).down(x),
        )

    def _made(self, index: int) -> Made:
        self._now = None  # its memory is this layer's
        parts = self._taken(index)

        def stored(name: str) -> Any:
            return self._as_kept(self._checkpoint.decoded(name, parts[name]))

        with pages.reusing():
            return self._make(index, stored)

    def _taken(self, index: int) -> Mapping[str, memoryview]:
        """A layer's bytes; from now on the next one's are read, into the other buffer."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.layer != index:
            wait([ahead.parts])
            self.bytes_so_far += _size(self._places[ahead.layer])
            ahead = None
        ahead = ahead or self._started(index)
        parts = ahead.parts.result()
        self.bytes_so_far += _size(self._places[index])
        after = index + 1
        if after == len(self._places):
            after = len(self.kept)
            self._reads.forget()  # what else is read of these files, as an embedding's rows
        if after != index:
            self._ahead = self._started(after)
        return parts

    def _started(self, index: int) -> _Ahead:
        self._turn = 1 - self._turn
        into = self._buffers[self._turn]
        return _Ahead(index, self._reader.submit(self._reads.read, self._places[index], into))


class LayerByLayer:
    """`Whole` of a model whose layers don't all stay in memory."""

    def __init__(self, offloaded: Offloaded, shape: Shape, ropes: Seq[Table]) -> None:
        self._offloaded, self._shape, self._ropes = offloaded, shape, ropes
        kept = offloaded.kept
        self._border, self._kept = 2 * len(kept), Whole(shape, kept, ropes) if kept else None

    def __call__(self, states: Tensor, feed: Feed, cache: KVCache, first: int, last: int) -> Tensor:
        """[B, T, D] -> [B, T, D] after the sub-layers from `first` on before `last`."""
        if self._kept is not None and first < self._border:
            states = self._kept(states, feed, cache, first, min(last, self._border))
            first = self._border
        while first < last:
            end = min(last, first // 2 * 2 + 2)
            states = self._one(first // 2)(states, feed, cache, first, end)
            first = end
        return states

    def _one(self, index: int) -> Whole:
        return Whole(self._shape, [self._offloaded.layer(index)], self._ropes, index)


Loops = Whole | LayerByLayer


def check(
    source: str | Path, other: str | None, device: torch.device, backend: str, memory: int
) -> None:
    """Raises `ForetokenError` for a model whose layers can't be read one by one. other: what it is
    or runs by instead of the native decoder, if anything."""
    runner, _ = split(backend)
    reasons = {
        other or "": other is not None,
        f"it runs on {device}, and layers are read into the memory of a CPU": device.type != "cpu",
        f"backend {backend!r} needs all layers at once": runner is not None,
        "only Linux lets go of what was read": sys.platform != "linux",
    }
    for reason, holds in reasons.items():
        if holds:
            raise ForetokenError(
                f"{source} can't be read layer by layer: {reason}; leave weights_memory out."
            )
    if memory < 1:
        raise ForetokenError(f"weights_memory is {memory}; give bytes, as 4294967296 or '4GiB'.")


def _size(places: Mapping[str, Place]) -> int:
    return sum(place.size for place in places.values())
