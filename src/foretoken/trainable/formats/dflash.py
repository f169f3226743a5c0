"""DFlash as z-lab publishes it, with `dflash_config`, and as `speculators` does.

Names are ours. z-lab counts the target's layers from 0, by their outputs; `speculators` counts the
embedding's output as 0. Mask tokens are a token of the target's, or have an embedding of their own:
in the file `mask_embedding.pt`, alone or with its `mask_token_id`, or among the tensors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foretoken.trainable.formats.published import (
    MASK,
    MASK_FILE,
    Config,
    Published,
    Source,
    loaded,
)

_VARIANTS = ("projector_type", "markov_rank", "use_confidence_head", "sample_from_anchor", "causal")
"""Settings of DFlash's variants, which are not served."""


def read(source: Source) -> Published | None:
    """A checkpoint as z-lab, SpecForge and ModelOpt publish it."""
    config = source.config
    if "dflash_config" not in config:
        return None
    settings: Config = config["dflash_config"]
    layers = config.get("num_target_layers")
    ids = settings.get("target_layer_ids") or _default_layers(
        layers or 0, config["num_hidden_layers"]
    )
    depth = {"layers": layers} if layers else {}
    return _read(source, config, {**settings, "block_size": config["block_size"]}, ids, depth)


def read_speculators(source: Source) -> Published | None:
    """A checkpoint as `speculators` publishes it."""
    config = source.config
    if config.get("speculators_model_type") != "dflash":
        return None
    layer = config["transformer_layer_config"]
    reduced = config.get("draft_vocab_size", layer["vocab_size"])
    if reduced != layer["vocab_size"]:
        raise source.refusal(
            f"its head knows {reduced} of {layer['vocab_size']} tokens, and only whole ones are"
        )
    ids = [index - 1 for index in config["aux_hidden_state_layer_ids"] or ()]
    return _read(source, layer, config, ids, {})


def _read(
    source: Source, layer: Config, config: Config, ids: list[int], depth: dict[str, int]
) -> Published:
    """layer: the part of the configuration that is like Qwen3's; config: the part of the method;
    depth: the target's number of layers, if it is given."""
    other = next((name for name in _VARIANTS if config.get(name)), None)
    if other is not None:
        raise source.refusal(f"its {other} is {config[other]!r}, and DFlash has none")
    if not ids:
        raise source.refusal("it doesn't say which of its target's layers it reads")
    mask = _mask(source, config)
    shape: dict[str, Any] = {
        **source.layer(layer),
        "num_layers": layer["num_hidden_layers"],
        "block_size": config["block_size"],
        "target_layer_ids": list(ids),
        "mask_token_id": config["mask_token_id"] if mask is None else None,
    }
    target = {"hidden_size": layer["hidden_size"], "vocab_size": layer["vocab_size"], **depth}
    return Published("dflash", target, shape, lambda: _tensors(source, mask))


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
        found = found.get("embedding")
    if not isinstance(found, Tensor):
        raise source.refusal(f"{MASK_FILE} holds no embedding")
    return found.flatten()


def _tensors(source: Source, mask: Tensor | None) -> dict[str, Any]:
    named = {name.removeprefix("encoder."): tensor for name, tensor in source.tensors.items()}
    return named if mask is None else {**named, MASK: mask}


def _default_layers(layers: int, count: int) -> list[int]:
    """Spread from the second to the last but two, where the configuration doesn't say."""
    if layers < 4:
        return []
    step = (layers - 4) / max(1, count - 1)
    return [round(1 + i * step) for i in range(count)] if count > 1 else [layers // 2]
