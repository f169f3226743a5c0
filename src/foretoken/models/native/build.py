"""Builds the native model from named weights.

Weights that go through one product are fused, and handed to the backend one layer at a time, so
that a backend that packs them never stores the model twice.

Legend: D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.model import eos_ids
from foretoken.models.native import attention, backends, block, check, loop_attention
from foretoken.models.native import norm as norms
from foretoken.models.native.backends import blocks, compiled, cuda_graphs, pages
from foretoken.models.native.backends.blocks import Blocks
from foretoken.models.native.check import CYCLE, EMBEDDING, HEAD, Stored
from foretoken.models.native.layer import (
    Embedding,
    EmbeddingTable,
    Layer,
    Linear,
    MakeLinear,
    Shape,
)
from foretoken.models.native.offloaded import Made, Offloaded
from foretoken.models.native.rope import Table
from foretoken.models.native.transformer import Transformer


def build_native(
    config: Any,
    stored: Stored,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    source: Path | None = None,
    offloaded: Offloaded | None = None,
    head_ids: Tensor | None = None,
) -> Transformer:
    """The model of a transformers configuration, its linear layers run by `backend`.

    `source`: the checkpoint's folder, where it is from one. offloaded: what reads the layers, where
    not all may stay in memory. head_ids [R]: the tokens that the head is to know, where not all;
    of stored blocks their rows are taken as they lie. Raises KeyError with the name of a tensor
    that is not there, and `ForetokenError` for a backend that can't serve it, and where
    configuration and tensors don't agree.
    """
    runner, linear_backend = backends.split(backend)
    shape = check.shape_of(config)
    expected = check.tensors(config, shape)
    stored = check.fitted(stored, expected)
    name, make = backends.choose(
        linear_backend, dtype, device, stored("model.layers.0.self_attn.q_proj.weight")
    )
    around_one = block.family(config).around_one
    kept = backends.kept(name, dtype)
    parts = Parts(stored, expected, make, kept, dtype, device, config.rms_norm_eps, around_one)
    # The widest matrix first: while it is packed, nothing else is in memory yet.
    embedding, lm_head = _ends(parts, bool(config.tie_word_embeddings), head_ids, offloaded)
    looped = name != "plain" and loop_attention.supports(dtype, device, shape.head_dim)
    mixing = loop_attention.mix if looped else attention.mix
    if offloaded is None:
        with pages.together():
            layers = _layers(parts, config, shape, mixing)
    else:
        ends = embedding.nbytes + parts.bytes_read
        layers = _read_layers(parts, config, shape, mixing, offloaded, ends)
    model = Transformer(
        shape,
        embedding,
        layers,
        parts.norm("model.norm"),
        lm_head,
        [Table(config, shape, dtype, device, kind) for kind in block.rope_kinds(config)],
        name,
        parts.count,
        parts.bytes_read,
        eos_ids(config),
        source,
        offloaded,
        None if head_ids is None else head_ids.to(device),
    )
    if runner is not None:
        run_through(runner, model)
    return model


class Parts:
    """Makes a model's parts from its stored weights. kept: the narrow dtype that products keep
    weights in. around_one: how norms are stored, see `block.Family`. count: parameters read so far.
    bytes_read: of the matrices that a pass reads, as they are stored. passing: that making the
    products took besides."""

    def __init__(
        self,
        stored: Stored,
        expected: dict[str, tuple[int, ...]],
        make: MakeLinear,
        kept: torch.dtype,
        dtype: torch.dtype,
        device: torch.device,
        eps: float,
        around_one: bool,
    ) -> None:
        self._expected = expected
        self._stored, self._make, self._eps = stored, make, eps
        self._around_one = around_one
        self._kept, self.dtype, self.device = kept, dtype, device
        self.count = self.bytes_read = self.passing = 0

    def reading(self, stored: Stored) -> Parts:
        """The same from other weights, with counts of its own."""
        given = self._make, self._kept, self.dtype, self.device, self._eps, self._around_one
        return Parts(check.fitted(stored, self._expected), self._expected, *given)

    def tensors(self, keys: Iterable[str]) -> list[Any]:
        """The stored tensors of these names; matrices may be `Blocks`."""
        tensors = [self._stored(key) for key in keys]
        self.count += sum(tensor.numel() for tensor in tensors)
        return tensors

    def joined(self, tensors: list[Tensor]) -> Tensor:
        """The tensors as one, in the model's dtype."""
        return _joined(tensors, self.dtype, self.device)

    def matrix(self, tensors: list[Tensor]) -> Tensor:
        """The tensors as one, for a product: as they are where it keeps them so, else in the
        model's dtype."""
        narrow = all(tensor.dtype == self._kept for tensor in tensors)
        if narrow and len(tensors) == 1 and self._kept != self.dtype:
            return tensors[0]  # which is packed from where it lies
        return _joined(tensors, self._kept if narrow else self.dtype, self.device)

    def product(self, weights: list[Any], bias: Tensor | None) -> Linear:
        count = sum(weight.numel() for weight in weights)
        if any(isinstance(weight, Blocks) for weight in weights):
            layer = blocks.product(weights, bias)
            self.passing += sum(weight.nbytes for weight in weights)
        else:
            layer = self._make(self.matrix(weights), bias)
            self.passing += count * self.dtype.itemsize
        self.bytes_read += backends.nbytes(layer, count, self.dtype)
        return layer

    def tied(self, matrix: Blocks) -> tuple[Embedding, Linear]:
        """Embedding and head of one matrix."""
        head, embedding = blocks.tied(matrix)
        self.bytes_read += head.nbytes
        return embedding, head

    def linear(self, prefix: str, *names: str) -> Linear:
        """Several stored layers as one product; with biases, if the configuration has them."""
        weights = self.tensors(f"{prefix}.{name}.weight" for name in names)
        biases = [f"{prefix}.{name}.bias" for name in names]
        if biases[0] not in self._expected:
            return self.product(weights, None)
        return self.product(weights, self.joined(self.tensors(biases)))

    def norm(self, name: str) -> norms.Norm:
        [stored] = self.tensors([f"{name}.weight"])
        if self._around_one:
            return norms.around_one(stored.to(self.device), self._eps, self.dtype)
        return norms.make(self.joined([stored]), self._eps)

    def norm_in(self, layer: str, name: str | None) -> norms.Norm | None:
        """A layer's norm; None where the family has none there."""
        return None if name is None else self.norm(f"{layer}.{name}")

    def agree(self, key: str, other: str) -> bool:
        """Whether two stored tensors are the same; neither is counted."""
        one, two = self._stored(key), self._stored(other)
        if isinstance(one, Blocks) and isinstance(two, Blocks):
            return one.kind == two.kind and torch.equal(one.data, two.data)
        return isinstance(one, Tensor) and isinstance(two, Tensor) and torch.equal(one, two)


def _ends(
    parts: Parts, tied: bool, head_ids: Tensor | None, offloaded: Offloaded | None
) -> tuple[Embedding, Linear]:
    """The embedding, in the narrower of its dtype and the model's, and the head, or its rows
    `head_ids`. Where layers are read when they run, the embedding stays in its file as well."""
    name, matrix = _end_names(parts) if tied else (EMBEDDING, HEAD)
    [embedding] = parts.tensors([name])
    if isinstance(embedding, Blocks) and matrix == name and head_ids is None:
        return parts.tied(embedding)
    head = [embedding] if matrix == name else parts.tensors([matrix])
    lm_head = parts.product(head if head_ids is None else [rows_of(head[0], head_ids)], None)
    if isinstance(embedding, Blocks):
        return embedding, lm_head
    if offloaded is not None and (rows := offloaded.embedding(name, embedding)):
        return rows, lm_head
    narrow = min(embedding.dtype, parts.dtype, key=lambda kind: kind.itemsize)
    return EmbeddingTable(_joined([embedding], narrow, parts.device)), lm_head


def rows_of(matrix: Any, ids: Tensor) -> Any:
    """Rows of a stored matrix, as they are stored: a block never reaches over two."""
    if isinstance(matrix, Blocks):
        return Blocks(matrix.data[ids], matrix.kind, matrix.shape[1])
    return matrix[ids.to(matrix.device)]


def _end_names(parts: Parts) -> tuple[str, str]:
    """The tensors that are embedding and head where the two are tied, as transformers takes them:
    the one that is stored, and where both are and differ, each its own."""
    try:
        return EMBEDDING, EMBEDDING if parts.agree(HEAD, EMBEDDING) else HEAD
    except KeyError as missing:
        there = EMBEDDING if missing.args[0] == HEAD else HEAD
        return there, there


def _layers(parts: Parts, config: Any, shape: Shape, mixing: Callable[..., Tensor]) -> list[Layer]:
    """All layers; those that repeat share their products and norms."""
    many = config.num_hidden_layers
    cycle = getattr(config, CYCLE, None) or many
    before, given = parts.bytes_read, [_own(config, shape, mixing, i) for i in range(many)]
    layers = [_layer(parts, config, i, given[i]) for i in range(min(cycle, many))]
    parts.bytes_read += (parts.bytes_read - before) * (many - len(layers)) // len(layers)
    for i in range(len(layers), many):
        _check_same(parts, config, shape, i, i - cycle)
        layers.append(replace(layers[i - cycle], **given[i]))
    return layers


def _read_layers(
    parts: Parts,
    config: Any,
    shape: Shape,
    mixing: Callable[..., Tensor],
    offloaded: Offloaded,
    ends: int,
) -> list[Layer]:
    """All layers, of which those that don't fit into memory beside embedding and head, of `ends`
    bytes, are read when they run; each has its own weights."""
    many = config.num_hidden_layers
    given = [_own(config, shape, mixing, i) for i in range(many)]

    def make(i: int, stored: Stored) -> Made:
        own = parts.reading(stored)
        layer = _layer(own, config, i, given[i])
        return Made(layer, own.count, own.bytes_read, own.passing)

    names = [
        [f"model.layers.{i}.{name}" for name in check.layer(config, shape)] for i in range(many)
    ]
    layers = offloaded.layers(make, names, ends)
    parts.count += offloaded.parameters
    parts.bytes_read += offloaded.nbytes
    return layers


def _own(config: Any, shape: Shape, mixing: Callable[..., Tensor], i: int) -> dict[str, Any]:
    """What layer i has of its own even where it repeats another's weights."""
    ropes, window = block.rope_kinds(config), block.window(config, i)
    mix = partial(
        mixing,
        heads=shape.heads,
        scale=block.score_scale(config, shape.head_dim),
        window=window,
        cap=block.cap(config, block.family(config).score_cap),
    )
    rope = 0 if ropes == [None] else ropes.index(config.layer_types[i])
    return {"mix": mix, "rope": rope, "window": window}


def _layer(parts: Parts, config: Any, i: int, own: dict[str, Any]) -> Layer:
    at, names, heads = f"model.layers.{i}", block.family(config).norms, block.head_norms(config)
    return Layer(
        **own,
        attention_norm=parts.norm(f"{at}.{names.before_attention}"),
        qkv=parts.linear(f"{at}.self_attn", "q_proj", "k_proj", "v_proj"),
        q_norm=parts.norm_in(at, heads[0]),
        k_norm=parts.norm_in(at, heads[1]),
        out=parts.linear(f"{at}.self_attn", "o_proj"),
        attention_out_norm=parts.norm_in(at, names.after_attention),
        mlp_norm=parts.norm(f"{at}.{names.before_mlp}"),
        gate_up=parts.linear(f"{at}.mlp", "gate_proj", "up_proj"),
        activation=block.activation(config),
        down=parts.linear(f"{at}.mlp", "down_proj"),
        mlp_out_norm=parts.norm_in(at, names.after_mlp),
    )


def run_through(runner: str, model: Transformer) -> None:
    """Have whole passes of the model run by one of `backends.RUNNERS`."""
    if runner == "cuda_graphs":
        model.run_by(cuda_graphs.Graphs, runner)
    else:
        background = runner == "compiled_in_background"
        model.run_by(partial(compiled.Compiled, background=background), runner)


def _check_same(parts: Parts, config: Any, shape: Shape, layer: int, earlier: int) -> None:
    """Raises `ForetokenError` where a layer has other weights than the one that it repeats."""
    for name in check.layer(config, shape):
        one, other = (f"model.layers.{i}.{name}" for i in (layer, earlier))
        if not parts.agree(one, other):
            raise ForetokenError(
                f"config.json says that layers repeat ({CYCLE}), but {name} of layer {layer} isn't "
                f"that of layer {earlier}; take {CYCLE} out of it."
            )


def _joined(parts: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Several stored tensors as one, each let go (and its file unmapped) once it is copied."""
    end = sum(len(part) for part in parts)
    shape = (end, *parts[0].shape[1:])
    if device.type == "cpu":
        whole = pages.passing(shape, dtype)
    else:
        whole = torch.empty(shape, dtype=dtype, device=device)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole
