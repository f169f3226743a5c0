"""A GGUF file written as a folder, which is the same model for everyone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import gguf_files
from command_line import CliRunner, app
from foretoken.errors import ForetokenError
from foretoken.models.checkpoint import Checkpoint
from foretoken.models.gguf import folder
from foretoken.models.load import generation_ends, load_model, load_tokenizer
from foretoken.testing import logits_after

IDS = [3, 50, 7, 7, 21, 90, 0, 13]


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_the_folder_is_the_model(architecture: str, tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", architecture, Kind.Q8_0)
    folder.write(path, tmp_path / "out")
    ours = load_model(path, device="cpu", backend="half")
    written = load_model(tmp_path / "out", device="cpu")
    assert torch.equal(logits_after(ours, IDS), logits_after(written, IDS))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.inference_mode():
        logits = theirs(torch.tensor([IDS])).logits[0, -1]
    assert torch.allclose(logits, logits_after(written, IDS), atol=1e-4)
    assert generation_ends(tmp_path / "out") == generation_ends(path)
    assert GenerationConfig.from_pretrained(tmp_path / "out").bos_token_id is not None


def test_configuration_and_tokenizer(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", kind=Kind.Q8_0)
    folder.write(path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "float16"
    ours: Any = load_tokenizer(path)
    text = "the cat<|turn|> in 東京"
    for tokenizer in (
        load_tokenizer(tmp_path / "out"),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    ):
        assert tokenizer(text)["input_ids"] == ours(text)["input_ids"]
        assert tokenizer.chat_template == ours.chat_template


@pytest.mark.parametrize("most", [100_000, 1])
def test_large_weights_are_written_in_parts(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a tensor at least, also where the first one is larger than a part."""
    path = gguf_files.written(tmp_path / "a.gguf")
    monkeypatch.setattr(folder, "_SHARD", most)
    folder.write(path, tmp_path / "out")
    names = {header.file.name for header in Checkpoint(tmp_path / "out").headers.values()}
    assert len(names) > 2 and f"model-00001-of-{len(names):05}.safetensors" in names
    assert names == {file.name for file in (tmp_path / "out").glob("*.safetensors")}
    ours, written = (load_model(place, device="cpu") for place in (path, tmp_path / "out"))
    assert torch.equal(logits_after(ours, IDS), logits_after(written, IDS))


def test_on_the_command_line(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf")

    def export(to: str) -> Any:
        return CliRunner().invoke(
            app, ["export", str(path), "--to", to, "--out", str(tmp_path / "out")]
        )

    assert isinstance(export("vllm").exception, ForetokenError | SystemExit)
    assert not (tmp_path / "out").exists()
    done = export("hf")
    assert done.exit_code == 0 and "for hf" in done.output
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", also={"general.architecture": None})
    data = path.read_bytes().replace(b"llama", b"lamma")
    path.write_bytes(data)
    with pytest.raises(ForetokenError, match="is a lamma model, and llama, qwen2, qwen3, gemma3"):
        folder.write(path, tmp_path / "out")


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """A tokenizer that can't be read is found before the weights are written."""
    path = gguf_files.written(tmp_path / "a.gguf", also={"tokenizer.ggml.pre": "chameleon"})
    with pytest.raises(ForetokenError, match="cutting text, 'chameleon', isn't known"):
        folder.write(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
