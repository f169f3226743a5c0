"""Kangaroo's adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import architectures
from foreign import LLAMA, check_drafts_as_ours, of_module
from foretoken import ForetokenError
from foretoken.drafters.kangaroo import KangarooAdapter
from foretoken.testing import Pair
from foretoken.trainable.formats import recognise


@pytest.mark.parametrize("name", of_module(KangarooAdapter))
def test_it_drafts_what_our_own_checkpoint_does(name: str, small: Pair, tmp_path: Path) -> None:
    """The same trees and acceptances, and the same tensors."""
    check_drafts_as_ours(name, small, tmp_path)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("family", ["mixtral", "nemotron", "qwen3_moe", "starcoder2"])
def test_models_without_a_gated_feed_forward(family: str, layers: int, tmp_path: Path) -> None:
    """They draft alone, and are no adapters, however many layers they have."""
    numbers = {"num_hidden_layers": layers, "layer_types": ...}
    architectures.tiny(family, **numbers).save_pretrained(tmp_path)
    assert recognise(tmp_path) is None


def test_an_adapter_of_two_layers(tmp_path: Path) -> None:
    """Is one all the same, and refused."""
    config = {**LLAMA, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    parts = ("self_attn.q_proj", "self_attn.o_proj", "input_layernorm")
    names = ["norm", *(f"layers.{i}.{part}" for i in range(2) for part in parts)]
    tensors = {f"{name}.weight": torch.ones(32) for name in names}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ForetokenError, match="it has 2 layers, and only one is"):
        recognise(tmp_path)
