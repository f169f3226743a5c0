"""Writes a Llama checkpoint folder as a float32 GGUF file, for llama.cpp.

Prompts go to llama.cpp as token ids, so the vocabulary is only as much as it takes to load: each
token is written as its number. Tensor and key names: llama.cpp's GGUF specification. Its Llama
rotates neighbouring dimensions where transformers' rotates halves, so the rows of q and k are put
into its order.

    python to_gguf.py <checkpoint folder> <file>
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_NORMAL, _CONTROL = 1, 3  # kinds of tokens


def tensor_name(name: str) -> str:
    """llama.cpp's name of a tensor of transformers' Llama; KeyError for any other."""
    if name in OUTER:
        return OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{INNER[rest.removesuffix('.weight')]}.weight"


def interleaved(weight: Any, heads: int) -> Any:
    """[heads · d, D] with each head's rows 0 1 … d-1 in the order 0 d/2 1 d/2+1 …"""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return split.swapaxes(1, 2).reshape(weight.shape)


def tensors(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(llama.cpp's name, float32 array) of every tensor in the checkpoint."""
    from safetensors import safe_open

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as stored:
            for name in stored.keys():  # noqa: SIM118 (safe_open is no mapping)
                new, array = tensor_name(name), stored.get_tensor(name).astype(np.float32)
                count = heads.get(new.split(".")[-2])
                yield new, interleaved(array, count) if count else array


def write(folder: Path, file: Path) -> None:
    """`folder` as the GGUF file `file`; needs the packages gguf and safetensors."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError(f"{folder} is not a Llama without biases, and only those are written.")
    out = gguf.GGUFWriter(file, "llama")
    _shape(out, config)
    _vocabulary(out, config)
    for name, array in tensors(folder, config):
        out.add_tensor(name, np.ascontiguousarray(array))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _shape(out: Any, config: dict[str, Any]) -> None:
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config
    out.add_file_type(0)  # all float32
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(head)
    out.add_value_length(head)
    out.add_rope_dimension_count(head)
    out.add_rope_freq_base(rope["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])


def _vocabulary(out: Any, config: dict[str, Any]) -> None:
    size = config["vocab_size"]
    out.add_tokenizer_model("llama")
    out.add_token_list([f"<{i}>" for i in range(size)])
    out.add_token_scores([0.0] * size)
    types = [_NORMAL] * size
    for name in ("bos", "eos"):
        token = config.get(f"{name}_token_id")
        if token is not None:
            types[token] = _CONTROL
            getattr(out, f"add_{name}_token_id")(token)
    out.add_token_types(types)
    out.add_add_bos_token(False)
    out.add_add_space_prefix(False)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
