"""Rotary tables against transformers' own rotation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from foretoken.models.native import rope

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_rotation_is_transformers(kind: str) -> None:
    """x · cos + roll(x) · sin with the table is what transformers' function gives."""
    given = {"rope_type": kind, "rope_theta": 1000.0, **KINDS[kind]}
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, max_position_embeddings=64, rope_parameters=given
    )
    table = rope.table(config, 16, 64, torch.float32, CPU)
    x, positions = torch.randn(1, 2, 5, 16), torch.tensor([[0, 3, 17, 40, 63]])
    cos, sin = table[positions].unbind(2)
    got = x * cos[:, None] + x.roll(8, -1) * sin[:, None]
    expected, _ = apply_rotary_pos_emb(x, x, *LlamaRotaryEmbedding(config)(x, positions))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_frequencies_alone() -> None:
    """Linear scaling by 4 divides each frequency by 4; the table of them is remembered."""
    scaling = {"rope_type": "linear", "factor": 4.0}
    slow, scale = rope.scaled(8, 100.0, scaling)
    expected = 1.0 / (100.0 ** (torch.arange(0, 8, 2).float() / 8)) / 4
    torch.testing.assert_close(slow, expected)
    assert scale == 1.0 and rope.scaled(8, 100.0, scaling)[0] is not None
