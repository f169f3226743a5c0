"""Checkpoints that transformers is to read: sizes are compared before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from foretoken.errors import ForetokenError
from foretoken.models.load import load_model
from stored_models import change_config, change_tensors, written


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ForetokenError, match=match) as caught:
        load_model(folder, device="cpu", model_impl="transformers")
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "hidden_size"])
def test_sizes_that_the_files_do_not_hold(folder: Path, name: str) -> None:
    """Refused before they are allocated: filling them would take all memory."""
    change_config(folder, **{name: 10**7})
    refused(folder, r"calls for \d+ weights, and its files hold \d+ bytes")


@pytest.mark.parametrize("count", [64, 9_999])
def test_more_layers_than_tensors(folder: Path, count: int) -> None:
    change_config(folder, num_hidden_layers=count)
    refused(folder, rf"calls for {count} layers, and its files hold 21 tensors")


@pytest.mark.parametrize(
    ("field", "given"),
    [("num_attention_heads", -1), ("num_key_value_heads", 0), ("sliding_window", -3),
     ("num_hidden_layers", 10**9), ("max_position_embeddings", 10**30)],
)  # fmt: skip
def test_numbers_that_are_no_sizes(tmp_path: Path, field: str, given: Any) -> None:
    change_config(written(tmp_path, "qwen2"), **{field: given})
    if field == "sliding_window":  # which is read only then
        change_config(tmp_path, use_sliding_window=True, layer_types=None)
    refused(tmp_path, f"{field} of the model's configuration is .* must be a whole number")


def test_shapes_dtypes_and_layers(folder: Path) -> None:
    """What transformers compares itself comes in one sentence; integers it would turn to floats."""
    name = "model.layers.1.self_attn.q_proj.weight"
    change_config(folder, num_hidden_layers=1)
    refused(folder, "hold weights of layer 1, and num_hidden_layers")
    change_config(folder, num_hidden_layers=2)
    change_tensors(folder, lambda x: x.update({name: x[name].to(torch.int32)}))
    refused(folder, "q_proj.* is stored as I32")
    change_tensors(folder, lambda x: x.update({name: torch.cat((x[name].float(),) * 2)}))
    refused(folder, "q_proj.* has the shape .* configuration calls for")


def test_a_model_without_safetensors_is_bounded_by_its_files(tmp_path: Path) -> None:
    """An older checkpoint's pickled weights are read; sizes beyond them are not allocated."""
    config = tf.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = tf.GPT2LMHeadModel(config)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert load_model(tmp_path, device="cpu").layers == 2
    change_config(tmp_path, vocab_size=10**8)
    refused(tmp_path, "weights, and its files hold")


def test_a_number_that_the_family_does_not_know(folder: Path) -> None:
    """transformers reads it in places all the same."""
    change_config(folder, sliding_window={})
    refused(folder, "sliding_window of the model's configuration is {} and must be")
