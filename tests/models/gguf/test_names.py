"""What tensors are called in a GGUF file and in transformers."""

from __future__ import annotations

import pytest

import gguf_files
from foretoken.models.gguf.names import FAMILIES


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_each_tensor_has_its_name(architecture: str) -> None:
    model, family = gguf_files.model(architecture), FAMILIES[architecture]
    for name, weight in model.named_parameters():
        stored, _ = gguf_files.stored(architecture, model.config, name, weight)
        assert family.name_of(stored) == name
        assert family.stored_name(name) == stored


@pytest.mark.parametrize(
    "stored",
    [
        "rope_freqs.weight",
        "blk.0.attn_q",
        "blk.x.attn_q.weight",
        "output.bias",
        "blk.0.nose.weight",
    ],
)
def test_another_tensor_has_none(stored: str) -> None:
    assert FAMILIES["llama"].name_of(stored) is None


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.weight_scale_inv", "lm_head.bias", "model.norm.bias"]
)
def test_what_would_not_be_read_back_has_none(name: str) -> None:
    assert FAMILIES["llama"].stored_name(name) is None


def test_what_differs_from_transformers() -> None:
    llama, gemma = FAMILIES["llama"], FAMILIES["gemma3"]
    assert llama.is_paired("blk.3.attn_q.weight") and llama.is_paired("blk.3.attn_k.weight")
    assert not llama.is_paired("blk.3.attn_v.weight")
    assert not gemma.is_paired("blk.3.attn_q.weight")
    assert gemma.shift_of("blk.0.attn_q_norm.weight") == gemma.shift_of("output_norm.weight") == 1
    assert gemma.shift_of("blk.0.attn_q.weight") == llama.shift_of("output_norm.weight") == 0
