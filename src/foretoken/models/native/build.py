"""Builds the native model from named weights.

Weights that go through one product are fused, and handed to the backend one layer at a time, so
that a backend that packs them never stores the model twice.

Legend: D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.model import eos_ids
from foretoken.models.native import attention, backends, check, loop_attention
from foretoken.models.native import norm as norms
from foretoken.models.native.backends import compiled, cuda_graphs
from foretoken.models.native.check import CYCLE, EMBEDDING, HEAD, Weights
from foretoken.models.native.layer import Layer, Linear, MakeLinear, Mix, Shape
from foretoken.models.native.rope import Table
from foretoken.models.native.transformer import Transformer


def build_native(
    config: Any,
    stored: Weights,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    source: Path | None = None,
) -> Transformer:
    """The model of a transformers configuration, its linear layers run by `backend`.

    `source`: the checkpoint's folder, where it is from one. Raises KeyError with the name of a
    tensor that is not there, and `ForetokenError` for a backend that can't serve it, and where
    configuration and tensors don't agree.
    """
    runner, linear_backend = backends.split(backend)
    shape = check.shape_of(config)
    expected = check.tensors(config, shape)
    stored = check.fitted(stored, expected)
    sample = stored("model.layers.0.self_attn.q_proj.weight")
    name, make = backends.choose(linear_backend, dtype, device, sample)
    parts = _Parts(stored, expected, make, dtype, device, config.rms_norm_eps)
    # The widest matrix first: while it is packed, nothing else is in memory yet.
    embedding, lm_head = _ends(parts, bool(config.tie_word_embeddings))
    looped = name != "plain" and loop_attention.supports(dtype, device, shape.head_dim)
    layers = _layers(parts, config, shape, loop_attention.mix if looped else attention.mix)
    model = Transformer(
        shape,
        embedding,
        layers,
        parts.norm("model.norm"),
        lm_head,
        Table(config, shape, dtype, device),
        name,
        parts.count,
        parts.bytes_read,
        eos_ids(config),
        source,
    )
    if runner is not None:
        run_through(runner, model)
    return model


class _Parts:
    """Makes a model's parts from its stored weights. count: parameters read so far. bytes_read: of
    the matrices that a pass reads, as they are stored."""

    def __init__(
        self,
        stored: Weights,
        expected: Collection[str],
        make: MakeLinear,
        dtype: torch.dtype,
        device: torch.device,
        eps: float,
    ) -> None:
        self._expected = expected
        self._stored, self._make, self._eps = stored, make, eps
        self.dtype, self.device = dtype, device
        self.count = self.bytes_read = 0

    def tensors(self, keys: Iterable[str]) -> list[Tensor]:
        """The stored tensors of these names."""
        tensors = [self._stored(key) for key in keys]
        self.count += sum(tensor.numel() for tensor in tensors)
        return tensors

    def joined(self, tensors: list[Tensor]) -> Tensor:
        """The tensors as one, in the model's dtype."""
        return _joined(tensors, self.dtype, self.device)

    def product(self, weight: Tensor, bias: Tensor | None) -> Linear:
        layer = self._make(weight, bias)
        self.bytes_read += round(weight.numel() * backends.itemsize(layer, self.dtype))
        return layer

    def linear(self, prefix: str, *names: str) -> Linear:
        """Several stored layers as one product; with biases, if the configuration has them."""
        weight = self.joined(self.tensors(f"{prefix}.{name}.weight" for name in names))
        biases = [f"{prefix}.{name}.bias" for name in names]
        if biases[0] not in self._expected:
            return self.product(weight, None)
        return self.product(weight, self.joined(self.tensors(biases)))

    def norm(self, name: str) -> norms.Norm:
        return norms.make(self.joined(self.tensors([f"{name}.weight"])), self._eps)

    def agree(self, key: str, other: str) -> bool:
        """Whether two stored tensors are the same; neither is counted."""
        return torch.equal(self._stored(key), self._stored(other))


def _ends(parts: _Parts, tied: bool) -> tuple[Tensor, Linear]:
    """The embedding [V, D], in the narrower of its dtype and the model's, and the head."""
    table, matrix = _end_names(parts) if tied else (EMBEDDING, HEAD)
    [embedding] = parts.tensors([table])
    head = [embedding] if matrix == table else parts.tensors([matrix])
    lm_head = parts.product(parts.joined(head), None)
    narrow = min(embedding.dtype, parts.dtype, key=lambda kind: kind.itemsize)
    return _joined([embedding], narrow, parts.device), lm_head


def _end_names(parts: _Parts) -> tuple[str, str]:
    """The tensors that are embedding and head where the two are tied, as transformers takes them:
    the one that is stored, and where both are and differ, each its own."""
    try:
        return EMBEDDING, EMBEDDING if parts.agree(HEAD, EMBEDDING) else HEAD
    except KeyError as missing:
        there = EMBEDDING if missing.args[0] == HEAD else HEAD
        return there, there


def _layers(parts: _Parts, config: Any, shape: Shape, mixing: Callable[..., Tensor]) -> list[Layer]:
    """All layers; those that repeat share their products and norms."""

    def mix(i: int) -> Mix:
        scale = shape.head_dim**-0.5
        return partial(mixing, heads=shape.heads, scale=scale, window=_window(config, i))

    many = config.num_hidden_layers
    cycle = getattr(config, CYCLE, None) or many
    before, normed = parts.bytes_read, config.model_type == "qwen3"
    layers = [_layer(parts, i, mix(i), normed) for i in range(min(cycle, many))]
    parts.bytes_read += (parts.bytes_read - before) * (many - len(layers)) // len(layers)
    for i in range(len(layers), many):
        _check_same(parts, i, i - cycle)
        layers.append(replace(layers[i - cycle], mix=mix(i)))
    return layers


def _layer(parts: _Parts, i: int, mix: Mix, normed: bool) -> Layer:
    """Layer i; `normed`: queries and keys have norms."""
    at = f"model.layers.{i}"
    return Layer(
        attention_norm=parts.norm(f"{at}.input_layernorm"),
        qkv=parts.linear(f"{at}.self_attn", "q_proj", "k_proj", "v_proj"),
        q_norm=parts.norm(f"{at}.self_attn.q_norm") if normed else None,
        k_norm=parts.norm(f"{at}.self_attn.k_norm") if normed else None,
        mix=mix,
        out=parts.linear(f"{at}.self_attn", "o_proj"),
        mlp_norm=parts.norm(f"{at}.post_attention_layernorm"),
        gate_up=parts.linear(f"{at}.mlp", "gate_proj", "up_proj"),
        down=parts.linear(f"{at}.mlp", "down_proj"),
    )


def run_through(runner: str, model: Transformer) -> None:
    """Have whole passes of the model run by one of `backends.RUNNERS`."""
    if runner == "cuda_graphs":
        model.run_by(cuda_graphs.Graphs, runner)
    else:
        background = runner == "compiled_in_background"
        model.run_by(partial(compiled.Compiled, background=background), runner)


def _check_same(parts: _Parts, layer: int, earlier: int) -> None:
    """Raises `ForetokenError` where a layer has other weights than the one that it repeats."""
    names = (*(f"self_attn.{n}_proj" for n in "qkvo"), "mlp.gate_proj", "mlp.down_proj")
    for name in names:
        one, other = (f"model.layers.{i}.{name}.weight" for i in (layer, earlier))
        if not parts.agree(one, other):
            raise ForetokenError(
                f"config.json says that layers repeat ({CYCLE}), but {name} of layer {layer} isn't "
                f"that of layer {earlier}; take {CYCLE} out of it."
            )


def _joined(parts: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Several stored tensors as one, each let go (and its file unmapped) once it is copied."""
    end = sum(len(part) for part in parts)
    whole = torch.empty(end, *parts[0].shape[1:], dtype=dtype, device=device)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


def _window(config: Any, layer: int) -> int | None:
    """A layer's sliding window: by its type where the configuration lists types, else for all.

    Llama has none, whatever its configuration says: so transformers runs it."""
    window = None if config.model_type == "llama" else getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is not None:
        return window if types[layer] == "sliding_attention" else None
    return window
