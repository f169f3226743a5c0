"""A copy of a model with fewer bits: its numbers, in the loops and without them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import gguf_files
import stored_models
from foretoken.errors import ForetokenError
from foretoken.models.load import load_model
from foretoken.models.native.backends import blocks, kernels
from foretoken.models.requantised import requantised
from foretoken.testing import logits_after
from linear_layers import CPU

IDS = stored_models.IDS
looped = pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")


def target(dtype: torch.dtype = torch.float32) -> Any:
    return SimpleNamespace(dtype=dtype, device=CPU, backend="auto")


@looped
@pytest.mark.parametrize("backend", ["q4", "q8"])
def test_it_is_what_the_backend_makes(backend: str, tmp_path: Path) -> None:
    """Of a folder, a GGUF file and a loaded model."""
    folder = stored_models.written(tmp_path / "model")
    expected = logits_after(load_model(folder, backend=backend, device="cpu"), IDS)
    for source in (str(folder), stored_models.original("llama")):
        copy = requantised(source, backend, target())
        assert copy.backend == backend
        assert torch.equal(logits_after(copy, IDS), expected)
    file = gguf_files.written(tmp_path / "a.gguf", "llama", Kind.F32)
    copy = requantised(str(file), backend, target())
    assert torch.equal(
        logits_after(copy, IDS), logits_after(load_model(file, backend=backend, device="cpu"), IDS)
    )


def test_in_float32_without_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks would be multiplied slowly, so that a draft would cost more than the target."""
    original = stored_models.original("llama")
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert requantised(original, "q8", target()).backend == "plain"


@looped
def test_a_part_of_the_vocabulary() -> None:
    """The first tokens, and the ends of text wherever they stand."""
    original = stored_models.original("llama")
    last = original.config.vocab_size - 1
    original.config.eos_token_id = last
    logits = logits_after(requantised(original, "q8", target(), 10), IDS)
    assert logits.isfinite().nonzero().flatten().tolist() == [*range(9), last]


def test_its_numbers_without_loops() -> None:
    """In float64 they are those of the blocks, and not the model's own."""
    original = stored_models.original("llama").double()
    copy = requantised(original, "q8", target(torch.float64))
    assert copy.backend == "plain" and copy.dtype == torch.float64
    with torch.inference_mode():
        meant = original(torch.tensor([IDS])).logits[0, -1]
    off = (logits_after(copy, IDS) - meant).abs().max()
    assert 0 < off < 0.05 * meant.abs().max()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match="int8"):
        requantised("mini", "int8", target())
    with pytest.raises(ForetokenError, match='"method": "substitute", "checkpoint"'):
        requantised(None, "q4", target())
