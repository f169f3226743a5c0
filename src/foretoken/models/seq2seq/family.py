"""What an encoder–decoder family is made of: its numbers, and the names of its tensors.

T5 (Raffel et al. 2020; v1.1: Shazeer 2020, gated feed-forward): norms before a sub-layer, no
biases, positions as a bias on the scores, which aren't scaled. BART (Lewis et al. 2020): norms
after, learned positions. mBART (Liu et al. 2020): norms before. Marian (Junczys-Dowmunt et al.
2018): norms after, sinusoids. All are as transformers runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from foretoken.errors import ForetokenError
from foretoken.models.native import check

SIDES = ("encoder", "decoder")


class Side(NamedTuple):
    """The numbers of encoder or decoder. feed: the width inside a feed-forward."""

    layers: int
    heads: int
    head_dim: int
    feed: int


class Shape(NamedTuple):
    """The numbers of a model. embedding_scale: what embeddings are multiplied by; output_scale:
    what the last states are; score_scale: what scores are, None for 1 / √head_dim."""

    width: int
    vocab_size: int
    max_length: int
    encoder: Side
    decoder: Side
    activation: str
    gated: bool
    eps: float
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    score_scale: float | None = None

    def side(self, name: str) -> Side:
        return self.encoder if name == "encoder" else self.decoder


class Part(NamedTuple):
    """The names of a sub-layer's norm, of the products that read the states, and of the last."""

    norm: str
    inward: tuple[str, ...]
    out: str


class LayerNames(NamedTuple):
    """A layer's sub-layers; cross: the decoder's attention to the source."""

    at: str
    own: Part
    cross: Part
    mlp: Part


class Family(NamedTuple):
    """shape: a configuration's numbers. names: of a layer, by side, number and shape. before:
    whether a norm stands before its sub-layer, not after. positions: "relative", "learned" or
    "sinusoidal". biased: whether products and norms have biases. entry_norm, exit_norm: of the
    embedded tokens and of the last states, None where there is none."""

    shape: Callable[[Any], Shape]
    names: Callable[[str, int, Shape], LayerNames]
    stack: str
    before: bool
    positions: str
    biased: bool
    entry_norm: str | None
    exit_norm: str | None


def _t5_shape(config: Any) -> Shape:
    _count(config, "d_model", "d_kv", "d_ff", "num_heads", "vocab_size")
    _count(config, "num_layers", "num_decoder_layers", most=check.MOST_LAYERS)
    _check_distances(config)
    length = getattr(config, "n_positions", None)
    check.count("n_positions", length, none=True)
    encoder = Side(config.num_layers, config.num_heads, config.d_kv, config.d_ff)
    return Shape(
        config.d_model,
        config.vocab_size,
        length or _T5_LENGTH,
        encoder,
        encoder._replace(layers=config.num_decoder_layers),
        config.dense_act_fn,
        config.is_gated_act,
        config.layer_norm_epsilon,
        output_scale=config.d_model**-0.5 if config.scale_decoder_outputs else 1.0,
        score_scale=1.0,
    )


_T5_LENGTH = 512
"""Tokens that T5 was trained on; its positions know no bound."""


def _check_distances(config: Any) -> None:
    """Raises `ForetokenError` where buckets of distances aren't single ones first, then growing."""
    buckets, farthest = "relative_attention_num_buckets", "relative_attention_max_distance"
    _count(config, buckets, farthest)
    count, distance = getattr(config, buckets), getattr(config, farthest)
    if count < 4 or distance <= count // 2:
        raise ForetokenError(
            f"{buckets} of the model's configuration is {count} and {farthest} {distance}; there "
            "must be 4 buckets or more, and the distance be above half of them; correct "
            "config.json, or fetch the checkpoint again."
        )


def _bart_shape(config: Any) -> Shape:
    _count(config, "d_model", "vocab_size", "max_position_embeddings")
    return Shape(
        config.d_model,
        config.vocab_size,
        config.max_position_embeddings,
        _bart_side(config, "encoder"),
        _bart_side(config, "decoder"),
        config.activation_function,
        gated=False,
        eps=1e-5,
        embedding_scale=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
    )


def _bart_side(config: Any, side: str) -> Side:
    _count(config, f"{side}_attention_heads", f"{side}_ffn_dim")
    _count(config, f"{side}_layers", most=check.MOST_LAYERS)
    heads = getattr(config, f"{side}_attention_heads")
    size, rest = divmod(config.d_model, heads)
    if rest:
        raise ForetokenError(
            f"d_model of the model's configuration is {config.d_model} and must be a multiple of "
            f"{side}_attention_heads, {heads}; correct config.json, or fetch the checkpoint again."
        )
    return Side(getattr(config, f"{side}_layers"), heads, size, getattr(config, f"{side}_ffn_dim"))


def _count(config: Any, *names: str, most: int = check.LARGEST) -> None:
    for name in names:
        check.count(name, getattr(config, name), most)


def _t5_names(side: str, i: int, shape: Shape) -> LayerNames:
    last = 1 if side == "encoder" else 2
    mlp, up = f"layer.{last}", ("wi_0", "wi_1") if shape.gated else ("wi",)
    return LayerNames(
        f"{side}.block.{i}",
        _attention("layer.0.layer_norm", "layer.0.SelfAttention", "q", "k", "v", "o"),
        _attention("layer.1.layer_norm", "layer.1.EncDecAttention", "q", "k", "v", "o"),
        Part(
            f"{mlp}.layer_norm",
            tuple(f"{mlp}.DenseReluDense.{name}" for name in up),
            f"{mlp}.DenseReluDense.wo",
        ),
    )


def _bart_names(side: str, i: int, shape: Shape) -> LayerNames:
    products = ("q_proj", "k_proj", "v_proj", "out_proj")
    return LayerNames(
        f"model.{side}.layers.{i}",
        _attention("self_attn_layer_norm", "self_attn", *products),
        _attention("encoder_attn_layer_norm", "encoder_attn", *products),
        Part("final_layer_norm", ("fc1",), "fc2"),
    )


def _attention(norm: str, at: str, query: str, key: str, value: str, out: str) -> Part:
    return Part(norm, (f"{at}.{query}", f"{at}.{key}", f"{at}.{value}"), f"{at}.{out}")


_BART = Family(
    _bart_shape,
    _bart_names,
    stack="model.{}",
    before=False,
    positions="learned",
    biased=True,
    entry_norm="layernorm_embedding",
    exit_norm=None,
)

FAMILIES = {
    "t5": Family(
        _t5_shape,
        _t5_names,
        stack="{}",
        before=True,
        positions="relative",
        biased=False,
        entry_norm=None,
        exit_norm="final_layer_norm",
    ),
    "bart": _BART,
    "mbart": _BART._replace(before=True, exit_norm="layer_norm"),
    "marian": _BART._replace(positions="sinusoidal", entry_norm=None),
}


def unsupported(config: Any) -> str | None:
    """Why a configuration of an encoder–decoder can't be served, or None where it can."""
    if config.model_type not in FAMILIES:
        return f"its family {config.model_type!r} is not one of {', '.join(FAMILIES)}"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised"
    if not getattr(config, "share_encoder_decoder_embeddings", True):
        return "its encoder and its decoder have vocabularies of their own"
    return None


def lengthen(config: Any, asked: int | None) -> None:
    """Change a configuration to one for texts of `asked` tokens, where its positions are distances,
    of which the far ones are all alike: what it was trained on is no bound then."""
    family = FAMILIES[config.model_type]
    if asked is not None and family.positions == "relative":
        config.n_positions = max(asked, family.shape(config).max_length)
