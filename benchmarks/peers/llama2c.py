"""A checkpoint of llama2.c (its version 0) as a Hugging Face folder.

The file: seven int32 (width, feed-forward, layers, heads, key/value heads, vocabulary, context),
then float32 tensors, each of all layers: embedding, attention norms, wq, wk, wv, wo, feed-forward
norms, w1, w2, w3; the final norm; two rotary tables, which are left. The head is the embedding.
Source: karpathy/llama2.c, export.py, `legacy_export`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

HEADER = 7
NAMES = {
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj",
    "w2": "mlp.down_proj",
    "w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}

Floats = NDArray[np.float32]


def convert(file: Path, folder: Path) -> Path:
    """Write the model in `file` to `folder`, which must not exist, and return that."""
    width, feed, layers, heads, kv_heads, vocab, context = (
        int(n) for n in np.fromfile(file, np.int32, HEADER)
    )
    narrow = width * kv_heads // heads
    shapes = {
        "attention_norm": (width,),
        "wq": (width, width),
        "wk": (narrow, width),
        "wv": (narrow, width),
        "wo": (width, width),
        "ffn_norm": (width,),
        "w1": (feed, width),
        "w2": (width, feed),
        "w3": (feed, width),
    }
    rest: Floats = np.fromfile(file, np.float32, offset=4 * HEADER)

    def take(*shape: int) -> Floats:
        nonlocal rest
        size = int(np.prod(shape))
        taken, rest = rest[:size].reshape(shape), rest[size:]
        return taken

    tensors = {"model.embed_tokens.weight": take(vocab, width)}
    for name, shape in shapes.items():
        for layer, tensor in enumerate(take(layers, *shape)):
            count = {"wq": heads, "wk": kv_heads}.get(name)
            tensors[f"model.layers.{layer}.{NAMES[name]}.weight"] = (
                halves(tensor, count) if count else tensor
            )
    tensors["model.norm.weight"] = take(width)
    folder.mkdir(parents=True)
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(width, feed, layers, heads, kv_heads, vocab, context)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def halves(weight: Floats, heads: int) -> Floats:
    """[heads · d, D] with each head's rotary pairs, side by side here, half a head apart."""
    split = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return split.swapaxes(1, 2).reshape(weight.shape)


def _config(
    width: int, feed: int, layers: int, heads: int, kv_heads: int, vocab: int, context: int
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": feed,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width // heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
