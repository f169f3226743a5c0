"""Kangaroo's adapter as its authors publish it: a configuration like Llama's, one attention between
two norms, and no feed-forward. Names are ours. Its files don't name the layer of the target
that it reads (2 for their Vicuna 7B, 3 for 13B): `exit_layer` may be added to its config.json.
"""

from __future__ import annotations

import re

from foretoken.trainable.formats.published import Published, Source

_HAS = {"layers.0.self_attn.q_proj.weight", "layers.0.input_layernorm.weight", "norm.weight"}
_PART = re.compile(r"layers\.\d+\.(\w+)")
_PARTS = {"self_attn", "input_layernorm"}
"""All that a layer of it has; a model that drafts alone has more, whatever its family calls it."""


def read(source: Source) -> Published | None:
    """A checkpoint as Kangaroo's authors publish it."""
    config = source.config
    if "num_attention_heads" not in config or _HAS - source.tensors.keys():
        return None
    parts = {named[1] for name in source.tensors if (named := _PART.match(name))}
    if "fc.weight" in source.tensors or parts - _PARTS:
        return None
    layer = source.one_layer(config)
    del layer["intermediate"]
    shape = {**layer, "exit_layer": config.get("exit_layer")}
    target = {"hidden_size": config["hidden_size"], "vocab_size": config["vocab_size"]}
    return Published("kangaroo", target, shape, lambda: source.tensors)
