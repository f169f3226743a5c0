"""Tiny models of transformers' causal language models, and the page that lists which are served.

    python tests/architectures.py        # writes docs/architectures.md

Each row of the page is tested in `tests/test_architectures.py`: what is served says what
transformers says, and what is refused is refused.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from foretoken.models.native import block

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
VOCAB, WINDOW = 61, 5

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "eos_token_id": 1,
    "pad_token_id": None,
    "bos_token_id": None,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "input_embedding_size", "output_embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "ffn_hidden_size"), 40),
    **dict.fromkeys(("decoder_ffn_dim", "intermediate_size_mlp", "n_inner"), 40),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 3),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("attention_heads", "decoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    "sliding_window": WINDOW,
    "attention_chunk_size": 4,
    "is_decoder": True,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 8),
    "qk_rope_head_dim": 4,
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group"), 1),
    "multi_query_group_num": 2,
}
"""Numbers of a tiny model; a family gets those that it declares."""

_LATENT_FAMILIES = (
    "axk1",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "minicpm3",
    "youtu",
)
_LATENT = {"num_key_value_heads": 4, "head_dim": ...}
_PAIRS = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
_PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
_ROTARY = {"rotary_dim": 4}
_NONE = {"pad_token_id": 0, "bos_token_id": 0}

OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_LATENT_FAMILIES, _LATENT),
    **dict.fromkeys(("camembert", "cwm", "data2vec-text", "roberta", "xlm-roberta"), _NONE),
    **dict.fromkeys(("codegen", "gptj"), _ROTARY),
    "exaone4": _PAIRS,
    "falcon": {"multi_query": True},
    "gemma2": _PAIRS,
    "gemma3_text": _PAIRS,
    "gemma3n_text": {
        **_PAIRS, **_PER_LAYER, "num_kv_shared_layers": 2, "laurel_rank": 4,
        "activation_sparsity_pattern": None, "altup_num_inputs": 2,
    },
    "gemma4_text": {**_PAIRS, **_PER_LAYER, "global_head_dim": 16},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 5},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "no_rope_layers": [1, 0, 1], "moe_layers": [1], "floor_scale": 4, "attn_scale": 0.5,
    },
    "lfm2": {"full_attn_idxs": [1]},
    "modernbert-decoder": {**_NONE, "local_attention": 2 * WINDOW},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"]
    },
    "olmo3": _PAIRS,
}  # fmt: skip
"""What some families need besides; `...`: not given."""


_softmax = torch.nn.functional.softmax


def softmax_of_its_dtype(x: Tensor, dim: int | None = None, dtype: Any = None, **_: Any) -> Tensor:
    """`torch.nn.functional.softmax` for tests: transformers' eager attention asks for float32
    whatever its dtype, and float64 is to be compared more closely."""
    return _softmax(x, dim, dtype=None if x.dtype == torch.float64 else dtype)


def tiny(name: str, **numbers: Any) -> Any:
    """The family's tiny model in float64, with weights that make attention matter."""
    family = type(AutoConfig.for_model(name))
    declared = {field.name for field in dataclasses.fields(family)}
    given = {key: value for key, value in SMALL.items() if key in declared}
    given = {k: v for k, v in (given | OWN.get(name, {}) | numbers).items() if v is not ...}
    config = family(**given)
    config._experts_implementation = "eager"
    with torch.random.fork_rng([]):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.copy_(noise * 0.2 if weight.dim() > 1 else weight + noise * 0.1)
    return model


_SERVED = """
    afmoe apertus arcee aria_text axk1 beam bert bert-generation biogpt bitnet codegen cohere
    cohere2 cohere2_moe ctrl cwm deepseek_v2 deepseek_v3 diffllama electra ernie ernie4_5
    ernie4_5_moe exaone4 exaone_moe falcon flex_olmo flint gemma gemma2 gemma3_text gemma3n_text
    gemma4_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_neox_japanese
    gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hrm_text
    hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jetmoe kolibri1 laguna llama
    llama4_text megatron-bert mellum mimo_v2_flash minicpm3 minimax_m2 ministral ministral3
    mistral mixtral modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi
    phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe rembert seed_oss smollm3 solar_open stablelm
    starcoder2 vaultgemma youtu
"""
_WITHOUT = {
    "hrm_text": "abcf",
    "mimo_v2_flash": "abcd",
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "abc"),
    **dict.fromkeys(_LATENT_FAMILIES, "abcd"),
}
SERVED = {name: _WITHOUT.get(name, "abcdf") for name in _SERVED.split()}
"""What runs through transformers, with the levels of access that it has there."""

_REASONS = {
    "ALiBi": "ALiBi takes distances from places in the cache",
    "local attention": "its local attention counts places in the cache",
    "leaves cells": "its attention leaves out cells where a text is long",
    "more than keys and values|recurrent state": "some layers keep more than keys and values",
    "gets other logits|its forward fails": "its attention doesn't follow the mask and positions "
    "that it is given",
    "not every layer puts": "its layers use no cache",
}
"""Part of the refusal -> how the page says it."""

REFUSED = {
    name: reason
    for reason, names in {
        "ALiBi": "bloom mpt",
        "local attention": "gpt_neo",
        "leaves cells": "big_bird bigbird_pegasus doge",
        "more than keys and values|recurrent state": """
            axk2 bailing_hybrid deepseek_v32 deepseek_v4 falcon_h1 falcon_mamba glm_moe_dsa hy_v4
            jamba lfm2 lfm3 mamba minimax minimax_m3_vl_text nemotron_h olmo_hybrid
            qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text recurrent_gemma rwkv xlstm
        """,
        "gets other logits|its forward fails": """
            bart blenderbot camembert cpmant data2vec-text marian mbart moshi mvp
            pegasus plbart prophetnet roberta roformer trocr xglm xlm-roberta xlnet
        """,
        "not every layer puts": "openai-gpt",
    }.items()
    for name in names.split()
}
"""What is refused -> a pattern of the refusal."""


def page() -> str:
    """The page, from the lists that the tests go through."""
    rows = {
        **{name: ("through transformers", levels) for name, levels in SERVED.items()},
        **{name: ("natively", "abcdef") for name in block.FAMILIES},
        **{name: (f"refused: {_REASONS[reason]}", "") for name, reason in REFUSED.items()},
    }
    native, served = len(block.FAMILIES), len(SERVED.keys() - block.FAMILIES.keys())
    body = [f"| {name} | {how} | {levels} |" for name, (how, levels) in sorted(rows.items())]
    head = _HEAD.format(all=len(rows), native=native, served=served, refused=len(REFUSED))
    return "\n".join([head, "| family | runs | access |", "|---|---|---|", *body, ""])


_HEAD = """# Architectures

`python tests/architectures.py` writes this page from the list that `tests/test_architectures.py` \
goes through: {all} families, {native} of them natively, {served} through the modelling code of \
`transformers` and {refused} refused. A family is what a checkpoint's config.json calls \
`model_type`; [access](architecture.md#what-a-target-offers) is what drafters may use of it.

Each row was tried with a tiny random model in float64. Where it says that the family runs, trees \
and chains in batches of different lengths, past sliding windows and after commits, got \
transformers' own logits of each path alone, and a greedy text was that of `generate`. A family \
that isn't listed is tried when a model is loaded: a small tree is compared with its paths, and a \
model for which they differ is refused. Where a text's length decides how all of its keys are \
turned (dynamic scaling, longrope), the context ends before that; [a larger `max_model_len`]\
(memory.md#a-longer-context) has longrope's long factors for every text. Here a family is its \
decoder-only form; of encoders with decoders T5, BART, mBART and Marian run natively and no others \
do. Images and sound are not served.
"""


if __name__ == "__main__":
    PAGE.write_text(page())
