"""Layers for multi-token prediction, as `speculators` publishes one and as MiMo's checkpoints have
them next to the model. Names are ours, mtp_layers.0.*; of several layers the first is read.

`input_proj` reads the embedding first, as ours does, or in MiMo's the state.
"""

from __future__ import annotations

import torch

from foretoken.trainable.formats.published import Published, Source, Tensors

_FIRST = "mtp_layers.0."
_JOIN = f"{_FIRST}input_proj.weight"


def read(source: Source) -> Published | None:
    """A checkpoint as `speculators` or MiMo publishes it."""
    config = source.config
    separate = config.get("speculators_model_type") == "mtp"
    if not separate and _JOIN not in source.tensors:
        return None
    layer = config["transformer_layer_config"] if separate else config
    target = {"hidden_size": layer["hidden_size"], "vocab_size": layer["vocab_size"]}
    if not separate:
        target["layers"] = config["num_hidden_layers"]
    return Published("mtp", target, source.layer(layer), lambda: _first(source, separate))


def _first(source: Source, separate: bool) -> Tensors:
    tensors = {name: tensor for name, tensor in source.tensors.items() if name.startswith(_FIRST)}
    if not separate:
        state, embedding = tensors[_JOIN].chunk(2, 1)
        tensors[_JOIN] = torch.cat((embedding, state), 1)
    return tensors
