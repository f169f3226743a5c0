"""Checkpoints of EAGLE-3 and P-EAGLE of several layers, named as vLLM and speculators name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from foreign import LLAMA, SAFE, VOCAB, WIDTH, written

HEAD = 11  # tokens
IDS = [2, 0, 1]  # of the captured outputs, of which 0 is the embedding's


def several(
    folder: Path,
    config: dict[str, Any],
    first: str = "layers.0",
    more: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Path:
    """A checkpoint of so many layers, with random weights and whatever norms its fields name.
    first: the name of its first layer; more: tensors that it has too, by size."""
    layer = config.get("transformer_layer_config", config)
    inner, kv, wide = 32, 16, layer["intermediate_size"]
    sizes: dict[str, tuple[int, ...]] = {
        "fc": (WIDTH, 3 * WIDTH),
        "norm": (WIDTH,),
        "lm_head": (HEAD, WIDTH),
    }
    for i in range(layer["num_hidden_layers"]):
        name, reads = f"layers.{i}" if i else first, WIDTH if i else 2 * WIDTH
        sizes |= {f"{name}.self_attn.{x}_proj": (kv, reads) for x in "kv"}
        sizes[f"{name}.self_attn.q_proj"] = (inner, reads)
        sizes[f"{name}.self_attn.o_proj"] = (WIDTH, inner)
        sizes |= {f"{name}.mlp.{x}_proj": (wide, WIDTH) for x in ("gate", "up")}
        sizes[f"{name}.mlp.down_proj"] = (WIDTH, wide)
        norms = ["input_layernorm", "post_attention_layernorm", *([] if i else ["hidden_norm"])]
        sizes |= {f"{name}.{norm}": (WIDTH,) for norm in norms}
        if layer["model_type"] == "qwen3":
            sizes |= {f"{name}.self_attn.{x}_norm": (layer["head_dim"],) for x in "qk"}
    if config.get("norm_before_fc"):
        sizes["input_norm"] = (3 * WIDTH,)
    if config.get("fc_norm"):
        sizes |= {f"fc_norm.{i}": (WIDTH,) for i in range(3)}
    random = torch.Generator().manual_seed(11)
    tensors = {
        f"{name}.weight": 0.4 * torch.randn(size, generator=random, dtype=torch.float64)
        + (len(size) == 1)
        for name, size in sizes.items()
    }
    for name, size in more.items():
        tensors[name] = torch.randn(size, generator=random, dtype=torch.float64)
    ids = torch.randperm(VOCAB, generator=random)[:HEAD].sort().values
    tensors["d2t"] = ids - torch.arange(HEAD)
    return written(folder, config, tensors)


VLLM = {
    **SAFE,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "rope_theta": 500.0,
    "eagle_aux_hidden_state_layer_ids": IDS,
}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": HEAD,
    "eagle_aux_hidden_state_layer_ids": IDS,
    "transformer_layer_config": {
        **LLAMA,
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "head_dim": 8,
        "rope_theta": 500.0,
    },
}
