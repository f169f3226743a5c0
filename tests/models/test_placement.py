"""Devices and dtypes, by name or as torch has them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from foretoken.errors import ForetokenError
from foretoken.models.placement import pick_device, pick_dtype, within_memory

CPU, GPU = torch.device("cpu"), torch.device("meta")
NOWHERE = Path("nowhere")


def test_dtypes() -> None:
    """By name, as a torch dtype, the checkpoint's own except on a CPU, and nothing else."""
    config = LlamaConfig()
    assert pick_dtype("half", config, CPU, NOWHERE) == torch.float16
    assert pick_dtype(torch.float64, config, CPU, NOWHERE) == torch.float64
    config.dtype = torch.bfloat16
    assert pick_dtype("auto", config, CPU, NOWHERE) == torch.float32
    assert pick_dtype("auto", config, GPU, NOWHERE) == torch.bfloat16
    for wrong in ("float31", "nn", "int64", "complex64", torch.int8, 5):
        with pytest.raises(ForetokenError, match=r"dtype is '?\w+'?; it must be"):
            pick_dtype(wrong, config, CPU, NOWHERE)  # type: ignore[arg-type]
    assert pick_device("cpu") == CPU


def test_the_dtype_of_weights_where_a_configuration_names_none(tmp_path: Path) -> None:
    """That of the first that a model can run in, on a GPU; what is quantised is none."""
    weights, config = torch.zeros(2, dtype=torch.bfloat16), LlamaConfig()
    eighth = {"a": weights.to(torch.float8_e4m3fn)}
    save_file(eighth | {"b": weights}, tmp_path / "model.safetensors")
    assert pick_dtype("auto", config, GPU, tmp_path) == torch.bfloat16
    assert pick_dtype("auto", config, CPU, tmp_path) == torch.float32
    save_file(eighth, tmp_path / "model.safetensors")
    assert pick_dtype("auto", config, GPU, tmp_path) == torch.float32


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda", "No CUDA device can be used here"),
        ("cuda:7", "No CUDA device can be used here"),
        (torch.device("cuda"), "No CUDA device can be used here"),
        ("mps", "Device 'mps' isn't served"),
        (torch.device("meta"), "isn't served"),
        ("gpu", "There is no device 'gpu'"),
        ("", "There is no device ''"),
        (5, "There is no device 5"),
        (True, "There is no device True"),
        (None, "There is no device None"),
    ],
    ids=str,
)
def test_devices_that_are_not_here(monkeypatch: pytest.MonkeyPatch, device: Any, said: str) -> None:
    """One sentence with the device and what to give instead, before anything is read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ForetokenError, match=said) as error:
        pick_device(device)
    assert "give" in str(error.value) and "cpu" in str(error.value)


def test_a_device_past_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cuda:0") == torch.device("cuda:0")
    for current in ("auto", "cuda", torch.device("cuda")):
        assert pick_device(current) == torch.device("cuda:1")
    with pytest.raises(ForetokenError, match="no device 'cuda:7', as this machine has 2"):
        pick_device("cuda:7")


@pytest.mark.parametrize(
    "raised",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_a_model_that_does_not_fit(raised: Exception) -> None:
    said = "org/name doesn't fit into the memory of cpu; take a smaller"
    with pytest.raises(ForetokenError, match=said) as error, within_memory("org/name", CPU):
        raise raised
    assert error.value.__cause__ is raised


def test_other_errors_of_a_load_come_through() -> None:
    for raised in (OSError(errno.EIO, "Input/output error"), RuntimeError("sizes"), KeyError("x")):
        with pytest.raises(type(raised)) as error, within_memory("org/name", CPU):
            raise raised
        assert error.value is raised
