"""What a family's decoder layer is made of, and what a configuration says of one layer.

All families are the same layer: a norm, attention, a norm, a gated feed-forward. They differ in
what is listed here, and nothing else in the native model asks for a family's name.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Norms(NamedTuple):
    """The names that the norms of a layer are stored under; those after a sub-layer norm what it
    adds to the states."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


_SANDWICH = Norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


class Family(NamedTuple):
    """A family as transformers runs it, whatever else its configurations name.

    head_norms: queries and keys are normed, too. around_one: what is stored of a norm's weight is
    its distance from one. windowed: layers may have a window; typed: those that a list of types
    names. activation, scale: the fields that name the activation, and the number whose root scores
    are divided by (without one, the width of a head). score_cap, logit_cap: fields with the soft
    caps of scores and logits. biased: products that have biases always, and bias_fields those whose
    biases a field switches on.
    """

    norms: Norms = Norms()
    head_norms: bool = False
    around_one: bool = False
    scaled_embedding: bool = False
    windowed: bool = True
    typed: bool = True
    activation: str = "hidden_act"
    scale: str | None = None
    score_cap: str | None = None
    logit_cap: str | None = None
    biased: tuple[str, ...] = ()
    bias_fields: tuple[tuple[str, str], ...] = ()


_ATTENTION_BIAS = (("attention_bias", "self_attn."),)
_GEMMA = Family(around_one=True, scaled_embedding=True, windowed=False, bias_fields=_ATTENTION_BIAS)
_GEMMA2 = _GEMMA._replace(
    norms=_SANDWICH,
    windowed=True,
    activation="hidden_activation",
    scale="query_pre_attn_scalar",
    score_cap="attn_logit_softcapping",
    logit_cap="final_logit_softcapping",
)

FAMILIES = {
    "llama": Family(windowed=False, bias_fields=(*_ATTENTION_BIAS, ("mlp_bias", "mlp."))),
    "mistral": Family(typed=False),
    "qwen2": Family(biased=("self_attn.q", "self_attn.k", "self_attn.v")),
    "qwen3": Family(head_norms=True, bias_fields=_ATTENTION_BIAS),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2._replace(head_norms=True, score_cap=None),
}


def family(config: Any) -> Family:
    """That of a configuration whose family is served."""
    return FAMILIES[config.model_type]


def head_norms(config: Any) -> tuple[str | None, str | None]:
    """The names that a layer's norms of queries and keys are stored under."""
    normed = family(config).head_norms
    return ("self_attn.q_norm", "self_attn.k_norm") if normed else (None, None)


def activation(config: Any) -> str:
    """The name of the feed-forward's activation."""
    return str(getattr(config, family(config).activation))


def biased(config: Any) -> tuple[str, ...]:
    """How the names of those products begin that have biases."""
    given = family(config)
    return given.biased + tuple(name for key, name in given.bias_fields if getattr(config, key))


def embedding_scale(config: Any) -> float:
    """What embeddings are multiplied by."""
    return math.sqrt(config.hidden_size) if family(config).scaled_embedding else 1.0


def score_scale(config: Any, head_dim: int) -> float:
    """What scores are multiplied by."""
    field = family(config).scale
    return float((getattr(config, field) if field else head_dim) ** -0.5)


def cap(config: Any, field: str | None) -> float | None:
    """The soft cap that a field names, of families that have it."""
    given = getattr(config, field) if field else None
    return None if given is None else float(given)


def types(config: Any) -> list[str] | None:
    """The types of layers, where a configuration lists them and its family reads the list."""
    return getattr(config, "layer_types", None) if family(config).typed else None


def window(config: Any, layer: int) -> int | None:
    """A layer's sliding window: by its type where there are types, else for all."""
    size: int | None = getattr(config, "sliding_window", None)
    kinds = types(config)
    if not family(config).windowed or (kinds and kinds[layer] != "sliding_attention"):
        return None
    return size


def rope_kinds(config: Any) -> list[str | None]:
    """The kinds of layers that have rotary parameters of their own; [None] where all share."""
    kinds = types(config) or ()
    nested = all(isinstance(config.rope_parameters.get(kind), dict) for kind in kinds)
    return [*dict.fromkeys(kinds)] if kinds and nested else [None]


def rope_of(config: Any, kind: str | None) -> Any:
    """The rotary parameters of a kind of layers."""
    return config.rope_parameters if kind is None else config.rope_parameters[kind]
