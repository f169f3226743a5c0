"""A GGUF file serves as the model that was written into it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import gguf_files
from foretoken.errors import ForetokenError
from foretoken.models.checkpoint import Header
from foretoken.models.gguf.checkpoint import GGUFCheckpoint
from foretoken.models.gguf.reader import GGUFFile


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_a_file_holds_the_model_that_was_written(architecture: str, tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", architecture)
    stored, model = GGUFCheckpoint(GGUFFile(path), True), gguf_files.model(architecture)
    weights = dict(model.named_parameters())
    assert stored.headers.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.allclose(stored(name), weight, atol=1e-6), name
        assert stored.header(name) == Header(tuple(weight.shape), "F32", path)


def test_a_tensor_that_no_model_of_its_kind_has_is_refused(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", extra={"blk.0.attn_sinks.weight": [1.0]})
    with pytest.raises(ForetokenError, match=r"'blk.0.attn_sinks.weight' is none that a llama"):
        GGUFCheckpoint(GGUFFile(path), True)


@pytest.mark.parametrize(("narrow", "dtype"), [(True, torch.float16), (False, torch.float32)])
def test_blocks_are_as_wide_as_was_asked_for(
    narrow: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    file = GGUFFile(gguf_files.written(tmp_path / "a.gguf", kind=Kind.Q8_0))
    stored = GGUFCheckpoint(file, narrow)
    assert stored("model.embed_tokens.weight").dtype == dtype
    assert stored.header("lm_head.weight").dtype == ("F16" if narrow else "F32")
    assert stored("model.norm.weight").dtype == torch.float32


def test_heads_that_do_not_divide_the_rows_are_refused(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", also={"llama.attention.head_count": 3})
    with pytest.raises(ForetokenError, match=r"'blk.0.attn_q.weight' has rows for no 3 heads"):
        GGUFCheckpoint(GGUFFile(path), True)("model.layers.0.self_attn.q_proj.weight")
