"""EAGLE-3 as SafeAILab and its followers publish it, and as `speculators` does; P-EAGLE too.

SafeAILab calls the layer `midlayer`, others `layers.0`; other names are ours. d2t has the offset
from each token's number in the head to its id. Captured layers: `eagle_aux_hidden_state_layer_ids`
counts the embedding's output as 0; inside `eagle_config` it counts the first layer's output as 0
where it begins with 1, which is how SGLang tells the two (its pull request 25454); DeepSpec's
`target_layer_ids` always do. Without any they are EAGLE-3's defaults. Where there are several
layers, those after the first are Llama's and called `layers.1` and so on, as vLLM and `speculators`
have them; SGLang calls the norm before their attention `hidden_norm` (its pull request 24663).

P-EAGLE is EAGLE-3 with `mask_hidden` [1, 1, 3D], as AWS, SpecForge and `speculators` publish it for
vLLM's `parallel_drafting`. The mask token is in `mask_token_id`, `pard_token` or `ptd_token_id`, in
vLLM's order. Its embedding is trained; where a file has none it is the target's.

Legend: V vocabulary, R reduced vocabulary.
"""

from __future__ import annotations

from typing import Any

from foretoken.trainable.formats.published import (
    EMBEDDING,
    Config,
    Published,
    Source,
    Tensors,
    vocabulary,
)

_MASK, _MASK_TOKENS = "mask_hidden", ("mask_token_id", "pard_token", "ptd_token_id")
_MARKS = ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")


def read(source: Source) -> Published | None:
    """A checkpoint as SafeAILab, SpecForge and ModelOpt publish it."""
    config = source.config
    named = any("eagle3" in name.lower() for name in config.get("architectures") or ())
    if not named and "draft_vocab_size" not in config:
        return None
    if not any(mark in source.tensors for mark in _MARKS):
        return None
    inner = config.get("eagle_config") or {}
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    after = list(inner.get("eagle_aux_hidden_state_layer_ids") or [])
    capture = list(ids) if ids else [i + (after[0] == 1) for i in after]
    capture = capture or [i + 1 for i in config.get("target_layer_ids") or ()]
    return _read(source, config, config, capture)


def read_speculators(source: Source) -> Published | None:
    """A checkpoint as `speculators` publishes it."""
    config = source.config
    if config.get("speculators_model_type") not in ("eagle3", "peagle"):
        return None
    capture = list(config.get("eagle_aux_hidden_state_layer_ids") or ())
    return _read(source, config, config["transformer_layer_config"], capture)


def _read(source: Source, config: Config, layer: Config, capture: list[int]) -> Published:
    """layer: the part of the configuration that is like Llama's."""
    width = config.get("target_hidden_size") or layer["hidden_size"]
    if width != layer["hidden_size"]:
        raise source.refusal(
            f"its hidden_size is {layer['hidden_size']} and its target's {width}, and only equal "
            "ones are"
        )
    names = source.tensors
    if any(name.startswith("additional_layers.") for name in names):
        raise source.refusal(
            "its later layers are named 'additional_layers', which are added to nothing that came "
            "before them, and only layers with a residual ('layers.1') are"
        )
    if config.get("logit_scale", 1.0) != 1.0:
        raise source.refusal(f"its logit_scale is {config['logit_scale']}, and only 1 is")
    norms = [name for name in ("norm_before_residual", "norm_output") if config.get(name)]
    norms += ["norm_before_fc"] * ("input_norm.weight" in names)
    norms += ["fc_norm"] * ("fc_norm.0.weight" in names)
    vocab = layer["vocab_size"]
    shape: dict[str, Any] = {
        **source.layer(layer),
        "num_layers": layer.get("num_hidden_layers", 1),
        "norms": norms,
        "draft_vocab_size": config.get("draft_vocab_size") or vocab,
    }
    shape |= {"capture": capture} if capture else {}
    target = {"hidden_size": width, "vocab_size": vocab}
    parallel = _MASK in names or config.get("speculators_model_type") == "peagle"
    shape |= _masked(source) if parallel else {}
    method = "peagle" if parallel else "eagle3"
    return Published(method, target, shape, lambda: _tensors(source, shape, vocab))


def _masked(source: Source) -> dict[str, Any]:
    """What P-EAGLE's shape has more. Raises `ForetokenError` where the mask isn't known."""
    if _MASK not in source.tensors:
        raise source.refusal(f"it is P-EAGLE without {_MASK}, which every place but one reads")
    given = (source.config.get(name) for name in _MASK_TOKENS)
    token = next((each for each in given if each is not None), None)
    if token is None:
        raise source.refusal(
            "it is P-EAGLE and its config.json names no mask token; add the mask_token_id that it "
            "was trained with"
        )
    return {"mask_token_id": int(token), "own_embedding": EMBEDDING in source.tensors}


def _tensors(source: Source, shape: Config, vocab: int) -> Tensors:
    """With d2t and t2d, which a head over the whole vocabulary may lack."""
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor for name, tensor in source.tensors.items()
    }
    for i in range(1, shape["num_layers"]):
        norm, other = (f"layers.{i}.{name}.weight" for name in ("input_layernorm", "hidden_norm"))
        if norm not in tensors and other in tensors:
            tensors[norm] = tensors.pop(other)
    if _MASK in tensors:
        tensors[_MASK] = tensors[_MASK].reshape(1, 1, -1)
    return {**tensors, **vocabulary(source, tensors, shape["draft_vocab_size"], vocab)}
