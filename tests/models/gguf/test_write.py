"""Checkpoints written as GGUF files: the same model, or the one that its backend makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import gguf_files
import stored_models
from command_line import CliRunner, app
from foretoken.errors import ForetokenError
from foretoken.models import gguf
from foretoken.models.gguf import write
from foretoken.models.gguf.reader import GGUFFile
from foretoken.models.load import load_model, load_tokenizer, read_config
from foretoken.models.native.backends import blocks
from foretoken.testing import logits_after

IDS = stored_models.IDS
looped = pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")


def of_folder(folder: Path) -> gguf.FolderSource:
    return gguf.FolderSource(folder, read_config(folder), None)


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
OTHER = {
    "mistral": {"sliding_window": None},
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 32},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_the_same_model(family: str, tmp_path: Path) -> None:
    folder = stored_models.written(tmp_path / "model", family, **OTHER.get(family, {}))
    kinds = gguf.write_file(of_folder(folder), tmp_path / "a.gguf", "F32")
    assert set(kinds.values()) == {"F32"}
    found = logits_after(load_model(tmp_path / "a.gguf", backend="plain"), IDS)
    expected = logits_after(load_model(folder, backend="plain"), IDS)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@looped
@pytest.mark.parametrize(("kind", "backend"), [("Q4_0", "q4"), ("Q8_0", "q8")])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_blocks_are_those_of_the_backend(
    kind: str, backend: str, family: str, tmp_path: Path
) -> None:
    """But for the order of rows that are turned, which changes no number."""
    folder = stored_models.written(tmp_path / "model", family, **OTHER.get(family, {}))
    gguf.write_file(of_folder(folder), tmp_path / "a.gguf", kind)
    lying = load_model(tmp_path / "a.gguf", device="cpu")
    assert lying.backend == "blocks"
    meant = load_model(folder, device="cpu", backend=backend)
    assert torch.equal(logits_after(lying, IDS), logits_after(meant, IDS))


def test_another_gguf_file(tmp_path: Path) -> None:
    """Tokenizer, template and numbers stay; blocks change, and norms don't."""
    path = gguf_files.written(tmp_path / "a.gguf", "llama", Kind.Q8_0)
    source, own = gguf.FileSource(path), {"own.large": 2**40, "own.negative": -3}
    source.metadata |= own
    gguf.write_file(source, tmp_path / "b.gguf", "Q4_0")
    before, after = GGUFFile(path), GGUFFile(tmp_path / "b.gguf")
    assert {key: after.metadata[key] for key in own} == own
    assert before.tensors.keys() == after.tensors.keys()
    assert {t.kind.name for t in after.tensors.values()} == {"F32", "Q4_0"}
    assert after.metadata["general.file_type"] == write.FORMATS["Q4_0"]
    for key in before.metadata.keys() - {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}:
        assert after.metadata[key] == before.metadata[key], key
    text = "the cat<|turn|> in 東京"
    ids = [load_tokenizer(file)(text)["input_ids"] for file in (path, tmp_path / "b.gguf")]
    assert ids[0] == ids[1]


def test_rows_that_blocks_do_not_divide(tmp_path: Path) -> None:
    """The next best format, and the command says so."""
    folder = stored_models.written(
        tmp_path / "model", hidden_size=256, intermediate_size=96, head_dim=32
    )
    file = str(tmp_path / "a.gguf")
    told = CliRunner().invoke(
        app, ["export", str(folder), "--to", "gguf", "--format", "Q4_K", "--out", file]
    )
    assert told.exit_code == 0 and "4 matrices in Q5_0, as Q4_K doesn't" in told.output
    kinds = {name: stored.kind.name for name, stored in GGUFFile(Path(file)).tensors.items()}
    assert kinds["blk.0.ffn_down.weight"] == "Q5_0" and kinds["blk.0.ffn_up.weight"] == "Q4_K"
    found, meant = (logits_after(load_model(m), IDS) for m in (file, folder))
    assert torch.cosine_similarity(found, meant, dim=0) > 0.8


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.written(tmp_path / "a.gguf")
    source: Any = gguf.FileSource(path)
    with pytest.raises(ForetokenError, match=r"a\.gguf must be a new file"):
        gguf.write_file(source, path, "Q8_0")
    with pytest.raises(ForetokenError, match="must be a new file whose name"):
        gguf.write_file(source, tmp_path / "folder", "Q8_0")
    with pytest.raises(ForetokenError, match="is the name of a part of a model; give another"):
        gguf.write_file(source, tmp_path / "b-00002-of-00003.gguf", "Q8_0")
    with pytest.raises(ForetokenError, match=r"'Q3_K'.*Q4_K"):
        gguf.write_file(source, tmp_path / "b.gguf", "Q3_K")
    foreign = gguf_files.written(tmp_path / "c.gguf", also={"general.architecture": "mamba"})
    with pytest.raises(ForetokenError, match="is a mamba model, and llama"):
        gguf.FileSource(foreign)
    told = CliRunner().invoke(
        app, ["export", "mini", "--to", "hf", "--format", "F16", "--out", "x"]
    )
    assert told.exit_code and "--format is of a GGUF file's" in told.output.replace("\n", " ")


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_K"])
def test_numbers_that_a_format_cannot_hold(kind: str, tmp_path: Path) -> None:
    """Are refused, where infinities would be written."""
    path = gguf_files.written(tmp_path / "a.gguf")
    source: Any = gguf.FileSource(path)
    source.tensor = lambda name: torch.full(source.shapes[name], 1e9)
    with pytest.raises(ForetokenError, match=r"as large as 1e\+09.*F32"):
        gguf.write_file(source, tmp_path / "b.gguf", kind)
    gguf.write_file(source, tmp_path / "b.gguf", "F32")


def test_nothing_is_left_of_what_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = gguf.FileSource(gguf_files.written(tmp_path / "a.gguf"))

    def stopped(name: str) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "tensor", stopped)
    with pytest.raises(KeyboardInterrupt):
        gguf.write_file(source, tmp_path / "b.gguf", "Q8_0")
    assert [file.name for file in tmp_path.iterdir()] == ["a.gguf"]
