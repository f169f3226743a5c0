"""Tiny GGUF files of random models, and of whatever else a test wants in one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

import stored_models

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
"""Architectures that are read natively, with stored_models' families."""

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LETTERS = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
MERGES = ["t h", "th e", "Ġ the", "i n", "Ġ a"]


def tokens() -> list[str]:
    """A vocabulary of bytes, in GPT-2's characters, of merges and of two tokens of control."""
    letters = LETTERS + [chr(256 + i) for i in range(256 - len(LETTERS))]
    return [*letters, *(merge.replace(" ", "") for merge in MERGES), "<|end|>", "<|turn|>"]


VOCAB = len(tokens())


def model(architecture: str, **numbers: Any) -> Any:
    """The transformers model that `written` writes."""
    sizes = {"vocab_size": VOCAB, "tie_word_embeddings": architecture == "gemma3"}
    if architecture == "gemma3":
        sizes |= {"num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 32}
    return stored_models.original(ARCHITECTURES[architecture], **sizes | numbers)


def metadata(architecture: str, config: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes of a configuration."""
    given = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
    }
    rope = config.rope_parameters
    if architecture == "gemma3":
        given["attention.sliding_window"] = config.sliding_window
        rope = rope["full_attention"]
    given["rope.freq_base"] = float(rope["rope_theta"])
    if architecture == "llama":
        given["rope.dimension_count"] = config.head_dim
    return {f"{architecture}.{key}": value for key, value in given.items()}


VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": tokens(),
    "tokenizer.ggml.token_type": [1] * (VOCAB - 2) + [3, 3],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.eos_token_id": VOCAB - 2,
    "tokenizer.ggml.eot_token_id": VOCAB - 1,
    "tokenizer.ggml.bos_token_id": VOCAB - 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}<|turn|>{% endfor %}",
}


def stored(architecture: str, config: Any, name: str, weight: torch.Tensor) -> tuple[str, Any]:
    """Name and numbers of a tensor as they stand in a file."""
    module, _, part = name.rpartition(".")
    numbers = weight.detach().float()
    if module in _ENDS:
        short = _ENDS[module]
    else:
        _, _, layer, inside = module.split(".", 3)
        named = _LAYER | (_SANDWICH if architecture == "gemma3" else {})
        short = f"blk.{layer}.{named[inside]}"
    if architecture == "llama" and short.endswith(("attn_q", "attn_k")):
        heads = config.num_attention_heads
        heads = heads if short.endswith("q") else config.num_key_value_heads
        halves = numbers.view(heads, 2, -1, *numbers.shape[1:])
        numbers = halves.transpose(1, 2).reshape(numbers.shape)
    if architecture == "gemma3" and short.endswith("norm"):
        numbers = numbers + 1
    return f"{short}.{part}", numbers.numpy()


def written(
    path: Path,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    also: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **numbers: Any,
) -> Path:
    """The file of `model`, its matrices as `kind`. also: metadata, None for keys that are left
    out; extra: tensors."""
    made = model(architecture, **numbers)
    writer = gguf.GGUFWriter(path, architecture)
    pairs = metadata(architecture, made.config) | VOCABULARY | dict(also or {})
    for key, value in pairs.items():
        if value is not None:
            add(writer, key, value)
    tied = made.config.tie_word_embeddings
    for name, weight in made.named_parameters():
        if name != "lm_head.weight" or not tied:
            put(writer, *stored(architecture, made.config, name, weight), kind)
    for name, value in (extra or {}).items():
        put(writer, name, np.asarray(value, np.float32), Kind.F32)
    finish(writer)
    return path


def put(writer: gguf.GGUFWriter, name: str, numbers: Any, kind: Kind) -> None:
    """Add a tensor; one that has a single dimension stays float32."""
    if numbers.ndim == 1 or kind == Kind.F32:
        writer.add_tensor(name, np.ascontiguousarray(numbers))
    else:
        writer.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a pair of metadata, by its Python type."""
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def split(path: Path, most: int, *, small_first: bool = False) -> list[Path]:
    """The file's parts beside it, of at most so many tensors each, as the package splits what it
    converts. small_first: the first has none, as by gguf-split's --no-tensor-first-split."""
    whole = gguf.GGUFReader(path)
    own = "general.architecture"
    writer = gguf.GGUFWriter(
        path,
        whole.fields[own].contents(),
        split_max_tensors=most,
        small_first_shard=small_first,
    )
    for key, field in whole.fields.items():
        if key != own and not key.startswith("GGUF."):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    finish(writer)
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
