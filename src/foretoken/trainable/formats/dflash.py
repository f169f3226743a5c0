"""DFlash and DFlash 2 as z-lab publishes them, with `dflash_config`, DFlash as `speculators` does.

Names are ours. z-lab counts the target's layers from 0, by their outputs; `speculators` counts the
embedding's output as 0. Mask tokens are a token of the target's, or have an embedding of their own:
in the file `mask_embedding.pt`, alone or with its `mask_token_id`, or among the tensors.

Windows, and whether a block's places see those before them alone, are said in several ways. z-lab's
`layer_types` give a window and, unless `is_causal` or `dflash_config`'s `causal` says otherwise,
causal blocks; MiMo's `use_swa` gives all layers a window of `swa_window_size` and leaves blocks as
they are (vLLM's models/qwen3_dflash.py tells them apart like this). Of `speculators` layers that
have a window have causal blocks but for `sliding_window_non_causal`. Where some layers have one and
others don't, as in z-lab's for Gemma 4, each layer is as it would be among others of its kind.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foretoken.errors import shown
from foretoken.trainable.formats.published import (
    MASK,
    MASK_FILE,
    Config,
    Published,
    Source,
    loaded,
    vocabulary,
)
from foretoken.trainable.layer import of_all

_VARIANTS = ("markov_rank", "use_confidence_head", "sample_from_anchor", "shift_label")
"""Settings of DFlash's variants, which are not served."""

_NEUTRAL = {
    "output_multiplier": 1.0,
    "final_logit_softcapping": 0.0,
    "input_embedding_scale": 1.0,
    "logit_scale": 1.0,
    "attention_value_scale": 1.0,
}
"""What is done to logits, embeddings and values, and the numbers that change nothing."""

_BESIDE = (*_VARIANTS, "projector_type", "logit_scale", "mask_token_id", "draft_vocab_size")
"""Settings that other programs find beside `dflash_config` too."""

SELECTING = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
"""DFlash 2's own settings."""


def read(source: Source) -> Published | None:
    """A checkpoint as z-lab, SpecForge and ModelOpt publish it."""
    config = source.config
    if "dflash_config" not in config:
        return None
    settings: Config = config["dflash_config"]
    layers = config.get("num_target_layers")
    ids = settings.get("target_layer_ids") or config.get("target_layer_ids")
    ids = ids or _default_layers(layers or 0, config["num_hidden_layers"])
    depth = {"layers": layers} if layers else {}
    size = settings.get("block_size") or config["block_size"]
    seen = _window(source, config, settings)
    beside = {name: config[name] for name in _BESIDE if name in config}
    return _read(source, config, {**beside, **settings, "block_size": size}, ids, depth, seen)


def read_speculators(source: Source) -> Published | None:
    """A checkpoint as `speculators` publishes it."""
    config = source.config
    if config.get("speculators_model_type") != "dflash":
        return None
    layer = config["transformer_layer_config"]
    ids = [index - 1 for index in config["aux_hidden_state_layer_ids"] or ()]
    both_ways = config.get("sliding_window_non_causal")
    seen = _window(source, layer, {"causal": False} if both_ways else {})
    seen |= {} if "window" in seen else {"causal": False}  # without one blocks see both ways
    return _read(source, layer, config, ids, {}, seen)


def _read(
    source: Source,
    layer: Config,
    config: Config,
    ids: list[int],
    depth: dict[str, int],
    seen: dict[str, Any],
) -> Published:
    """layer: the part of the configuration that is like Qwen3's; config: the part of the method;
    depth: the target's number of layers, if it is given; seen: as `_window` has it."""
    other = next((name for name in _VARIANTS if config.get(name)), None)
    second = any(name in config for name in SELECTING)
    if config.get("projector_type") not in (None, "dflash", *(["dflash2"] if second else [])):
        other = "projector_type"
    if other is not None:
        raise source.refusal(f"its {other} is {config[other]!r}, and DFlash has none")
    if not ids:
        raise source.refusal("it doesn't say which of its target's layers it reads")
    for name, neutral in _NEUTRAL.items():
        if config.get(name) not in (None, neutral):
            raise source.refusal(
                f"its {name} is {config[name]}, and only {neutral}, which changes nothing, is"
            )
    mask, vocab = _mask(source, config), layer["vocab_size"]
    reduced = config.get("draft_vocab_size") or vocab
    shape: dict[str, Any] = {
        **source.layer(layer, windows=True),
        **seen,
        **({} if reduced == vocab else {"draft_vocab_size": reduced}),
        **{name: config[name] for name in SELECTING if name in config},
        "num_layers": layer["num_hidden_layers"],
        "block_size": config["block_size"],
        "target_layer_ids": list(ids),
        "mask_token_id": config["mask_token_id"] if mask is None else None,
    }
    target = {"hidden_size": layer["hidden_size"], "vocab_size": vocab, **depth}
    return Published(
        "dflash2" if second else "dflash",
        target,
        shape,
        lambda: _tensors(source, mask, reduced, vocab),
    )


def _window(source: Source, layer: Config, method: Config) -> dict[str, Any]:
    """How many tokens the layers see, and whether a block's tokens see those before them alone, as
    the module's shape has them. method: the settings beside the layer's."""
    kinds = layer.get("layer_types") or ["full_attention"]
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise source.refusal(f"one of its layers is of the kind {shown(kind)}")
    sliding = [kind == "sliding_attention" for kind in kinds]
    given = next((g for g in (layer.get("is_causal"), method.get("causal")) if g is not None), None)
    found = {"causal": of_all(sliding if given is None else [bool(given)])}
    windowed = sliding if any(sliding) or not method.get("use_swa") else [True]
    if not any(windowed):
        return found
    window = method.get("swa_window_size") or layer.get("sliding_window")
    if not window:
        raise source.refusal("its layers have a window, and it doesn't say of how many tokens")
    return {**found, "window": of_all([window if each else None for each in windowed])}


def _mask(source: Source, config: Config) -> Tensor | None:
    """The mask's own embedding [D]. Raises `ForetokenError` for what is none."""
    file = source.folder / MASK_FILE
    if not file.is_file():
        return source.tensors.get(MASK)
    found = loaded(file)
    if isinstance(found, dict):
        token = found.get("mask_token_id", config["mask_token_id"])
        if token != config["mask_token_id"]:
            raise source.refusal(
                f"{MASK_FILE} is of token {token}, and its mask is {config['mask_token_id']}"
            )
        if found.get("per_position"):
            raise source.refusal(f"{MASK_FILE} has an embedding for each place, and one for all is")
        found = found.get("embedding")
    if not isinstance(found, Tensor):
        raise source.refusal(f"{MASK_FILE} holds no embedding")
    return found.flatten()


def _tensors(source: Source, mask: Tensor | None, reduced: int, vocab: int) -> dict[str, Any]:
    named = {name.removeprefix("encoder."): tensor for name, tensor in source.tensors.items()}
    if reduced == vocab:  # of the target's own head
        named = {name: tensor for name, tensor in named.items() if name not in ("d2t", "t2d")}
    else:
        named |= vocabulary(source, named, reduced, vocab)
    return named if mask is None else {**named, MASK: mask}


def _default_layers(layers: int, count: int) -> list[int]:
    """Spread from the second to the last but two, where the configuration doesn't say."""
    if layers < 4:
        return []
    step = (layers - 4) / max(1, count - 1)
    return [round(1 + i * step) for i in range(count)] if count > 1 else [layers // 2]
