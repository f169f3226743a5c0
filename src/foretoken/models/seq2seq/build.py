"""Builds an encoder–decoder from named weights, and says which tensors it calls for.

Legend: D width, V vocabulary, H heads, W head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.model import eos_ids
from foretoken.models.native import backends, check
from foretoken.models.native import norm as norms
from foretoken.models.native.backends import plain, quantise
from foretoken.models.native.build import Parts
from foretoken.models.native.layer import EmbeddingTable, Linear
from foretoken.models.native.norm import Norm
from foretoken.models.seq2seq.beginning import Beginning
from foretoken.models.seq2seq.encoder import Encoder, Origin
from foretoken.models.seq2seq.family import FAMILIES, SIDES, Family, LayerNames, Shape
from foretoken.models.seq2seq.model import Seq2Seq
from foretoken.models.seq2seq.stack import (
    ACTIVATIONS,
    Attention,
    FeedForward,
    RelativeBias,
    Stack,
    gated,
    norm_after,
    norm_before,
)

_SHARED = ("shared.weight", "model.shared.weight")
_TABLES = (
    *_SHARED,
    *(f"{at}{side}.embed_tokens.weight" for at in ("", "model.") for side in SIDES),
)
"""What the one table of embeddings may be stored as: files keep one of several names."""
_HEAD, _LOGITS_BIAS = "lm_head.weight", "final_logits_bias"
_OF_BLOCKS = ("blocks", *quantise.BACKENDS)
_OFFSET = 2  # rows before the first position in tables that were learned
_BUCKETS = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def build_seq2seq(
    config: Any,
    stored: check.Weights,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    beginning: Beginning,
    source: Path | None = None,
) -> Seq2Seq:
    """The model of a transformers configuration, its linear layers run by `backend`.

    Raises KeyError with the name of a tensor that is not there, and `ForetokenError` for a backend
    that can't serve it, and where configuration and tensors don't agree.
    """
    family = FAMILIES[config.model_type]
    shape = family.shape(config)
    if shape.activation not in ACTIVATIONS:
        raise ForetokenError(
            f"The model's activation is {shape.activation!r}, and only {', '.join(ACTIVATIONS)} "
            "are served; use another model."
        )
    expected = tensors(config, shape)
    stored = check.fitted(stored, expected)
    runner, linear = backends.split(backend)
    if runner is not None or linear in _OF_BLOCKS:
        raise ForetokenError(
            f"Backend {backend!r} isn't one of encoder–decoders, whose passes aren't compiled and "
            "whose weights aren't cut into blocks; use backend='auto'."
        )
    name, make = backends.choose(linear, dtype, device)
    kept = backends.kept(name, dtype)
    parts = Parts(stored, expected, make, kept, dtype, device, shape.eps, False)
    building = _Building(parts, config, family, shape)
    table, head = building.ends()
    read, runs = parts.bytes_read, (dtype, device, name)
    reads, source_kv = building.stack("encoder"), building.source_kv()
    parts.bytes_read = read  # a pass runs the decoder only
    return Seq2Seq(
        shape,
        table,
        Encoder(table, shape.embedding_scale, reads, _origin(config, shape, runs, source)),
        source_kv,
        building.stack("decoder"),
        head,
        building.logits_bias(beginning),
        beginning,
        runs,
        (parts.count, parts.bytes_read),
        eos_ids(config),
        source,
    )


class _Building:
    """Makes the parts of one model."""

    def __init__(self, parts: Parts, config: Any, family: Family, shape: Shape) -> None:
        self._parts, self._config, self._family, self._shape = parts, config, family, shape
        # What trained feed-forwards of T5's add is more than float16 can hold.
        self._widened = family.positions == "relative" and parts.dtype == torch.float16

    def ends(self) -> tuple[EmbeddingTable, Linear]:
        """The embedding and the head, which is the same matrix unless another one is stored."""
        parts = self._parts
        name, table = self._first(*_TABLES, _HEAD)
        for other in _TABLES:
            with contextlib.suppress(KeyError):
                if not parts.agree(name, other):
                    raise ForetokenError(
                        f"The model's embeddings differ ({name} and {other}), and one for both of "
                        "its stacks is served; use a model whose encoder and decoder share it."
                    )
        with contextlib.suppress(KeyError):
            if not parts.agree(name, _HEAD):
                return EmbeddingTable(parts.joined([table])), parts.product(
                    parts.tensors([_HEAD]), None
                )
        return EmbeddingTable(parts.joined([table])), parts.product([table], None)

    def _first(self, *names: str) -> tuple[str, Tensor]:
        """The first of these tensors that is stored."""
        for name in names:
            with contextlib.suppress(KeyError):
                return name, self._parts.tensors([name])[0]
        raise KeyError(names[0])

    def logits_bias(self, beginning: Beginning) -> Tensor | None:
        """[V] what is added to the logits: what is stored, and -inf at ids that are never written.
        None where that is nothing."""
        parts, shape = self._parts, self._shape
        bias = torch.zeros(shape.vocab_size, dtype=parts.dtype, device=parts.device)
        if self._family.biased:
            with contextlib.suppress(KeyError):
                bias += parts.joined([self._first(_LOGITS_BIAS)[1]])[0]
        bias[list(beginning.banned)] = -torch.inf
        return bias if bias.any() else None

    def stack(self, side: str) -> Stack:
        """Encoder or decoder."""
        family, numbers = self._family, self._shape.side(side)
        names = [family.names(side, i, self._shape) for i in range(numbers.layers)]
        at, scale = family.stack.format(side), self._shape.score_scale
        return Stack(
            enter=self._entry(at),
            own=[self._attention(name, name.own, 3) for name in names],
            cross=[self._attention(n, n.cross, 1) for n in names if side == "decoder"],
            mlp=[self._mlp(name) for name in names],
            leave=self._norm_or_none(at, family.exit_norm),
            around=norm_before if family.before else norm_after,
            bias=self._bias(side),
            heads=numbers.heads,
            head_dim=numbers.head_dim,
            scale=numbers.head_dim**-0.5 if scale is None else scale,
        )

    def source_kv(self) -> list[Linear]:
        """Of each decoder layer: what makes keys and values of the encoder's states."""
        numbers = range(self._shape.decoder.layers)
        names = [self._family.names("decoder", i, self._shape) for i in numbers]
        return [self._parts.linear(name.at, *name.cross.inward[1:]) for name in names]

    def _attention(self, names: LayerNames, part: Any, inward: int) -> Attention:
        parts = self._parts
        return Attention(
            self._norm(f"{names.at}.{part.norm}"),
            parts.linear(names.at, *part.inward[:inward]),
            parts.linear(names.at, part.out),
        )

    def _mlp(self, names: LayerNames) -> FeedForward:
        activation = ACTIVATIONS[self._shape.activation]
        return FeedForward(
            self._norm(f"{names.at}.{names.mlp.norm}"),
            self._parts.linear(names.at, *names.mlp.inward),
            gated(activation) if self._shape.gated else activation,
            self._down(f"{names.at}.{names.mlp.out}"),
        )

    def _down(self, name: str) -> Linear:
        """A feed-forward's last product, in float32 where the states are, as transformers has it
        for T5 in float16."""
        parts = self._parts
        if not self._widened:
            return parts.linear(*name.rsplit(".", 1))
        [stored] = parts.tensors([f"{name}.weight"])
        weight = stored.to(parts.device, torch.float32)
        parts.bytes_read += weight.nbytes
        product = plain.make(weight, None)
        return lambda states: product(states.float())

    def _norm(self, name: str) -> Norm:
        """A layer norm, or T5's: without mean and bias."""
        parts, eps = self._parts, self._shape.eps
        weight = parts.joined(parts.tensors([f"{name}.weight"]))
        if not self._family.biased:
            return _t5_norm(weight, eps)
        bias, size = parts.joined(parts.tensors([f"{name}.bias"])), tuple(weight.shape)
        return lambda states: F.layer_norm(states, size, weight, bias, eps)

    def _norm_or_none(self, at: str, name: str | None) -> Norm:
        return _same if name is None else self._norm(f"{at}.{name}")

    def _entry(self, at: str) -> Callable[[Tensor, Tensor], Tensor]:
        """What embedded tokens go through before the first layer."""
        norm, table = self._norm_or_none(at, self._family.entry_norm), self._positions(at)
        if table is None:
            wide = torch.float32 if self._widened else self._parts.dtype
            return lambda states, _: norm(states).to(wide)
        return lambda states, positions: norm(states + table[positions])

    def _positions(self, at: str) -> Tensor | None:
        """The table of positions [P, D]; None where they enter otherwise."""
        parts, shape = self._parts, self._shape
        if self._family.positions == "learned":
            return parts.joined(parts.tensors([f"{at}.embed_positions.weight"]))[_OFFSET:]
        if self._family.positions == "sinusoidal":
            return sinusoids(shape.max_length, shape.width).to(parts.device, parts.dtype)
        return None

    def _bias(self, side: str) -> RelativeBias | None:
        if self._family.positions != "relative":
            return None
        table = self._parts.joined(self._parts.tensors([_BUCKETS.format(side)]))
        farthest = self._config.relative_attention_max_distance
        return RelativeBias(table, farthest, both=side == "encoder")


def _same(states: Tensor) -> Tensor:
    return states


def _t5_norm(weight: Tensor, eps: float) -> Norm:
    """T5's norm in float64 has the mean square alone in float32, as transformers has it; in float16
    it takes states in float32."""
    size = tuple(weight.shape)
    if weight.dtype == torch.float16:
        return lambda states: weight * F.rms_norm(states.float(), size, None, eps).half()
    if weight.dtype != torch.float64:
        return norms.make(weight, eps)

    def norm(states: Tensor) -> Tensor:
        square = states.float().pow(2).mean(-1, keepdim=True)
        return weight * (states * torch.rsqrt(square + eps))

    return norm


def sinusoids(count: int, width: int) -> Tensor:
    """[count, width] sines of all positions, then cosines, at wave lengths that grow to 10000
    (Vaswani et al. 2017, section 3.5), rounded to float32."""
    rates = np.power(10000, 2 * (np.arange(width) // 2) / width)
    angles = np.arange(count)[:, None] / rates
    table = np.concatenate((np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])), 1)
    return torch.from_numpy(table.astype(np.float32))


def _origin(
    config: Any, shape: Shape, runs: tuple[torch.dtype, torch.device, str], source: Path | None
) -> Origin:
    """What the encoder is made of, the numbers that only the decoder reads left out."""
    numbers = shape._replace(decoder=shape.encoder, output_scale=1.0)
    farthest = getattr(config, "relative_attention_max_distance", None)
    at, tables = FAMILIES[config.model_type].stack.format("encoder"), (*_TABLES, _HEAD)
    own = [name for name in tensors(config, shape) if name.startswith(f"{at}.")]
    settings = (config.model_type, numbers, farthest, *runs)
    return Origin(settings, tables, tuple(name for name in own if name not in tables), source)


def tensors(config: Any, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Each tensor that may be read, with its shape."""
    family, width, vocab = FAMILIES[config.model_type], shape.width, shape.vocab_size
    expected: dict[str, tuple[int, ...]] = {
        **dict.fromkeys((*_TABLES, _HEAD), (vocab, width)),
        _LOGITS_BIAS: (1, vocab),
    }
    for side in SIDES:
        at = family.stack.format(side)
        expected |= _norm_sizes(family, width, f"{at}.{family.entry_norm}")
        expected |= _norm_sizes(family, width, f"{at}.{family.exit_norm}")
        if family.positions == "learned":
            expected[f"{at}.embed_positions.weight"] = (shape.max_length + _OFFSET, width)
        for i in range(shape.side(side).layers):
            expected |= _layer(family, shape, side, i)
        if family.positions == "relative":
            heads = shape.side(side).heads
            buckets = config.relative_attention_num_buckets
            expected[_BUCKETS.format(side)] = (buckets, heads)
    return expected


def _layer(family: Family, shape: Shape, side: str, i: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer."""
    names, numbers, width = family.names(side, i, shape), shape.side(side), shape.width
    inner = numbers.heads * numbers.head_dim
    attentions = (names.own, names.cross) if side == "decoder" else (names.own,)
    parts = [*((part, inner) for part in attentions), (names.mlp, numbers.feed)]
    expected: dict[str, tuple[int, ...]] = {}
    for part, size in parts:
        expected |= _norm_sizes(family, width, f"{names.at}.{part.norm}")
        products = {**dict.fromkeys(part.inward, (size, width)), part.out: (width, size)}
        for name, sizes in products.items():
            expected[f"{names.at}.{name}.weight"] = sizes
            if family.biased:
                expected[f"{names.at}.{name}.bias"] = sizes[:1]
    return expected


def _norm_sizes(family: Family, width: int, name: str) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {f"{name}.weight": (width,)}
    return sizes | {f"{name}.bias": (width,)} if family.biased else sizes
