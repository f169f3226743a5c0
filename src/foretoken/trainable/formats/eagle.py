"""SafeAILab's EAGLE-1 and EAGLE-2, which share their weights: a configuration like Llama's, and one
layer without an input norm after `fc`. Names are ours; `embed_tokens` is the target's.
"""

from __future__ import annotations

from foretoken.trainable.formats.published import Published, Source


def read(source: Source) -> Published | None:
    """A checkpoint of EAGLE-1 or -2 as SafeAILab publishes it."""
    config = source.config
    if "num_attention_heads" not in config:
        return None
    if not {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= source.tensors.keys():
        return None
    if "layers.0.input_layernorm.weight" in source.tensors:
        return None
    shape = {**source.one_layer(config), "bias": "fc.bias" in source.tensors}
    target = {"hidden_size": config["hidden_size"], "vocab_size": config["vocab_size"]}
    return Published("eagle", target, shape, lambda: source.tensors)
