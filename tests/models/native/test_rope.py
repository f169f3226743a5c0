"""Rotary tables against transformers' own rotation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from foretoken.errors import ForetokenError
from foretoken.models.native import rope
from foretoken.models.native.check import shape_of

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
    table = rope.Table(config, shape_of(config), torch.float32, CPU).upto(64)
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


def test_a_table_is_as_long_as_what_is_in_use() -> None:
    """Not as long as the context that a configuration names; growing changes no row, and what was
    read before stays where it is."""
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, max_position_embeddings=10**8)
    table = rope.Table(config, shape_of(config), torch.float32, CPU)
    first = table.upto(7)
    kept, at = first.clone(), first.data_ptr()
    assert len(first) == 1024 and table.upto(1024) is first
    with torch.inference_mode():
        longer = table.upto(1025)
    assert len(longer) == 2048 and torch.equal(longer[:1024], first) and table.upto(9) is longer
    assert len(table.upto(10_000)) == 10_000
    whole = rope.Table(config, shape_of(config), torch.float32, CPU).upto(10_000)
    assert torch.equal(table.upto(10_000), whole)
    del first, longer
    assert table._made[0].data_ptr() == at and torch.equal(table._made[0], kept)
    x = torch.ones(16, requires_grad=True)  # a table that grew while text was written can be
    (x * table.upto(10_000)[3, 0]).sum().backward()  # read where a drafter is trained


def test_a_table_ends_with_the_context() -> None:
    """It doubles up to there, and goes on where a draft reaches over the end."""
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, max_position_embeddings=1500)
    table = rope.Table(config, shape_of(config), torch.float32, CPU)
    assert len(table.upto(1025)) == 1501 and len(table.upto(1510)) == 1510


@pytest.mark.parametrize(
    "given",
    [{"rope_type": "default", "rope_theta": -3.0}, {"rope_type": "default", "rope_theta": "x"},
     {"rope_type": "default"}, {"rope_type": "linear", "rope_theta": 1e4},
     {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0},
     {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}],
)  # fmt: skip
def test_parameters_that_give_no_rotation(given: dict[str, Any]) -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=2)
    config.rope_parameters = given
    with pytest.raises(ForetokenError, match=r"rope_parameters .* give no rotary positions"):
        rope.Table(config, shape_of(config), torch.float32, CPU)


def test_a_head_that_turns_in_part_has_no_table() -> None:
    """Of one that is half as wide there are half as many frequencies."""
    config = LlamaConfig(hidden_size=32, num_attention_heads=2)
    config.rope_parameters = {
        "rope_type": "linear",
        "rope_theta": 1e4,
        "factor": 2.0,
        "partial_rotary_factor": 0.5,
    }
    with pytest.raises(ForetokenError, match="give no rotary positions"):
        rope.Table(config, shape_of(config), torch.float32, CPU)


def test_kinds_of_layers_turn_by_tables_of_their_own() -> None:
    """Gemma 3's local layers have another base than its global ones, and each its own scaling."""
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = Gemma3TextConfig(hidden_size=32, num_hidden_layers=6, rope_parameters=ropes, **heads)
    theirs, positions = Gemma3RotaryEmbedding(config), torch.arange(64)[None]
    for kind in ("sliding_attention", "full_attention"):
        table = rope.Table(config, shape_of(config), torch.float32, CPU, kind).upto(64)
        cos, sin = theirs(torch.ones(1), positions, kind)
        torch.testing.assert_close(table[:64, 0], cos[0])
        torch.testing.assert_close(table[:64, 1, 8:], sin[0, :, 8:])
