"""Architectures of GGUF files that are read without transformers' reader: what their tensors are
called there and in transformers, and how they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
"""By what each rotary frequency is divided: a part of the configuration."""

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_MODULE = re.compile(r"model\.layers\.(\d+)\.(.+)")
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class Family:
    """model_type: transformers' name. layer: a layer's tensors, by their names in the file.
    paired: rows of queries and keys stand as the rotation pairs them, and not its halves. shift:
    what the file's norms are larger by than transformers'."""

    model_type: str
    layer: Mapping[str, str]
    paired: bool = False
    shift: float = 0.0

    def name_of(self, stored: str) -> str | None:
        """transformers' name of a tensor; None for one that the family doesn't have."""
        if match := _BLOCK.fullmatch(stored):
            layer, name, part = match.groups()
            inside = self.layer.get(name)
            return inside and f"model.layers.{layer}.{inside}.{part}"
        name, _, part = stored.partition(".")
        end = _ENDS.get(name) if part == "weight" else None
        return end and f"{end}.weight"

    def stored_name(self, name: str) -> str | None:
        """The file's name of transformers' tensor; None for one that the family doesn't have."""
        module, _, part = name.rpartition(".")
        if part not in ("weight", "bias"):
            return None
        if match := _MODULE.fullmatch(module):
            inside = {own: stored for stored, own in self.layer.items()}.get(match[2])
            return inside and f"blk.{match[1]}.{inside}.{part}"
        end = {own: stored for stored, own in _ENDS.items()}.get(module)
        return f"{end}.{part}" if end and part == "weight" else None

    def is_paired(self, stored: str) -> bool:
        """Whether the rows of this tensor of the file stand in pairs."""
        return self.paired and ("attn_q." in stored or "attn_k." in stored)

    def shift_of(self, stored: str) -> float:
        """By how much this tensor of the file is larger than transformers'."""
        return self.shift if stored.endswith("norm.weight") else 0.0


FAMILIES = {
    "llama": Family("llama", _LAYER, paired=True),  # Mistral's too
    "qwen2": Family("qwen2", _LAYER),
    "qwen3": Family("qwen3", _LAYER | _HEAD_NORMS),
    "gemma3": Family("gemma3_text", _LAYER | _HEAD_NORMS | _SANDWICH, shift=1.0),
}
"""By llama.cpp's name of the architecture."""
