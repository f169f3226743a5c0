"""From a folder or a name to a model: what is read, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM
from foretoken.errors import ForetokenError
from foretoken.models.hf.adapter import HFModel
from foretoken.models.load import (
    find,
    load_model,
    load_tokenizer,
    pick_device,
    pick_dtype,
    read_config,
    stored_weights,
    wrapped,
)
from foretoken.models.native.build import CYCLE
from foretoken.testing import native, tiny_transformers

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny float32 checkpoint."""
    path = tmp_path_factory.mktemp("checkpoint")
    tiny_transformers(dtype=torch.float32).save_pretrained(path)
    return path


def test_a_folder_is_read_by_either_implementation(folder: Path) -> None:
    """Both know where the weights are from; the native one names its backend."""
    ours = load_model(folder, device="cpu", backend="plain")
    theirs = load_model(folder, device="cpu", model_impl="transformers")
    assert (ours.backend, ours.source) == ("plain", folder)
    assert isinstance(theirs, HFModel) and theirs.source is theirs.model
    assert ours.vocab_size == theirs.vocab_size and ours.layers == theirs.layers


def test_a_loaded_model_is_wrapped_once() -> None:
    """One of ours stays as it is; one of transformers' comes in the adapter."""
    model = tiny_transformers()
    ours = native(model)
    assert wrapped(ours) is ours
    assert isinstance(wrapped(model), HFModel)


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/at/all", "./nowhere", "a/b/c"])
def test_where_there_is_no_checkpoint(name: str) -> None:
    """Nothing is fetched for a name that can't be a hub id; what may be given is said."""
    with pytest.raises(ForetokenError, match="There is no checkpoint folder"):
        find(name)


def test_dtypes(folder: Path) -> None:
    """By name, as a torch dtype, the checkpoint's own except on a CPU, and nothing else."""
    config = read_config(folder)
    assert pick_dtype("half", config, CPU) == torch.float16
    assert pick_dtype(torch.float64, config, CPU) == torch.float64
    config.dtype = torch.bfloat16
    assert pick_dtype("auto", config, CPU) == torch.float32
    assert pick_dtype("auto", config, torch.device("meta")) == torch.bfloat16
    for wrong in ("float31", "nn"):
        with pytest.raises(ForetokenError, match=f"dtype {wrong!r} is not known"):
            pick_dtype(wrong, config, CPU)
    assert pick_device("cpu") == CPU


def test_shards_and_what_is_missing(folder: Path, tmp_path: Path) -> None:
    """An index names each tensor's file; a missing or damaged one is named."""
    source = (folder / "model.safetensors").read_bytes()
    (tmp_path / "one.safetensors").write_bytes(source)
    index: dict[str, Any] = {"weight_map": {"model.embed_tokens.weight": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    name = "model.embed_tokens.weight"
    assert torch.equal(stored_weights(tmp_path)(name), stored_weights(folder)(name))
    with pytest.raises(KeyError):
        stored_weights(tmp_path)("no.such.tensor")
    (tmp_path / "one.safetensors").write_bytes(source[: len(source) // 2])
    with pytest.raises(ForetokenError, match=r"one\.safetensors is truncated"):
        stored_weights(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    with pytest.raises(ForetokenError, match=r"Shard one\.safetensors .* is missing"):
        stored_weights(tmp_path)


def test_a_folder_without_a_part(tmp_path: Path, folder: Path) -> None:
    """No configuration, no weights, no tokenizer: each is one sentence."""
    with pytest.raises(ForetokenError, match=r"has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ForetokenError, match=r"holds no \*\.safetensors"):
        stored_weights(tmp_path)
    with pytest.raises(ForetokenError, match="has no tokenizer"):
        load_tokenizer(folder)
    with pytest.raises(ForetokenError, match="model_impl is 'onnx'"):
        load_model(folder, model_impl="onnx")


def test_layers_that_differ_are_no_cycle(tmp_path: Path) -> None:
    """A config that says so of other weights is refused, and names the layers."""
    model = tiny_transformers(layers=4, dtype=torch.float32)
    setattr(model.config, CYCLE, 2)
    model.save_pretrained(tmp_path)
    with pytest.raises(ForetokenError, match="layer 2 isn't that of layer 0"):
        LLM(tmp_path)
