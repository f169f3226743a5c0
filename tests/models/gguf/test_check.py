"""What is no language model, or can't be read, is called by its name before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import gguf_files
from foretoken.errors import ForetokenError
from foretoken.models import gguf as files
from foretoken.models.gguf import blocks, check
from foretoken.models.gguf.reader import GGUFFile
from foretoken.models.load import load_model, load_tokenizer

MATRIX = np.zeros((8, 32), np.float32)
LORA = {"blk.0.attn_q.weight.lora_a": MATRIX, "blk.0.attn_q.weight.lora_b": MATRIX}
SIZES = {"context_length": 64, "embedding_length": 32, "block_count": 2, "feed_forward_length": 64}


def other(
    path: Path,
    architecture: str,
    also: dict[str, Any],
    tensors: dict[str, Any],
    kind: Kind = Kind.F32,
) -> Path:
    """A file of another sort: sizes, a vocabulary, and what is given."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {f"{architecture}.{key}": value for key, value in SIZES.items()}
    for key, value in (sizes | gguf_files.VOCABULARY | also).items():
        gguf_files.add(writer, key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, value, raw_dtype=None if kind == Kind.F32 else kind)
    gguf_files.finish(writer)
    return path


TOKENS = {"token_embd.weight": MATRIX}
T5 = {f"t5.attention.{key}": 1e-6 for key in ("layer_norm_epsilon", "layer_norm_rms_epsilon")}
SSM = {"conv_kernel": 4, "inner_size": 64, "state_size": 16, "time_step_rank": 2}
MAMBA = {f"mamba.ssm.{key}": value for key, value in SSM.items()}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "mmproj": ("clip", {"general.type": "mmproj"}, TOKENS, "what a model sees .* the language"),
    "an older mmproj": ("clip", {}, TOKENS, "what a model sees or hears with; give the language"),
    "lora": ("llama", {"general.type": "adapter"}, LORA, "an adapter .*; merge it into its model"),
    "an older lora": ("gpt2", {}, LORA, "an adapter .*; merge it into its model"),
    "a control vector": ("controlvector", {}, {"direction.1": MATRIX}, "a control vector"),
    "statistics": ("imatrix", {"general.type": "imatrix"}, TOKENS, "statistics for quantising"),
    "bert": ("bert", {}, TOKENS, r"embeds texts \(bert\) and writes none; give one that writes"),
    "nomic": ("nomic-bert-moe", {}, TOKENS, r"embeds texts \(nomic-bert-moe\)"),
    "an encoder": ("t5encoder", {}, TOKENS, r"embeds texts \(t5encoder\)"),
    "pooled": ("qwen3", {"qwen3.pooling_type": 3}, TOKENS, r"embeds texts \(qwen3\)"),
    "both ways": ("llama", {"llama.attention.causal": False}, TOKENS, r"embeds texts \(llama\)"),
    "a vocabulary": ("llama", {}, {}, "has a vocabulary and no weights"),
    "another vocabulary": ("gpt2", {}, {}, "has a vocabulary and no weights"),
    "encoder-decoder": (
        "t5",
        T5,
        TOKENS,
        "is an encoder-decoder and can.t be served: it is a GGUF file",
    ),
    "mamba": ("mamba", MAMBA, TOKENS, "keep more than keys and values .* use a model with"),
    "rwkv": ("rwkv6", {}, TOKENS, "'rwkv6', which transformers can't read .* give the model's own"),
}


@pytest.mark.parametrize("impl", ["auto", "transformers"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_language_model_is_called_by_its_name(
    case: str, impl: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    architecture, also, tensors, message = CASES[case]
    path = other(tmp_path / "a.gguf", architecture, also, tensors)
    capfd.readouterr()
    with pytest.raises(ForetokenError, match=message) as raised:
        load_model(path, device="cpu", model_impl=impl)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", ""), "it was loaded first"


def test_nor_is_it_written_in_another_way(tmp_path: Path) -> None:
    path = other(tmp_path / "a.gguf", "llama", {"general.type": "adapter"}, LORA)
    with pytest.raises(ForetokenError, match="merge it into its model"):
        files.FileSource(path)
    with pytest.raises(ForetokenError, match="merge it into its model"):
        files.write_folder(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_alone_is_a_tokenizer(tmp_path: Path) -> None:
    path = other(tmp_path / "a.gguf", "llama", {}, {})
    assert load_tokenizer(path)("the")["input_ids"]


@pytest.mark.parametrize("impl", ["auto", "transformers"])
@pytest.mark.parametrize("kind", [Kind.Q8_1, Kind.Q8_K, Kind.I32], ids=lambda kind: kind.name)
def test_a_type_without_numbers_is_refused_before_a_weight_is_read(
    kind: Kind, impl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(blocks, "read")
    data = np.zeros((8, 2 * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    path = other(tmp_path / "a.gguf", "llama", {}, {"token_embd.weight": data}, kind)
    message = f"'token_embd.weight' is of type {kind.name}, which can't be dequantised; use a file"
    with pytest.raises(ForetokenError, match=message) as raised:
        load_model(path, device="cpu", model_impl=impl)
    assert str(path) in str(raised.value)


def test_types_that_are_read() -> None:
    """All that models are published in, those of two bits among them."""
    named = ("F32", "F16", "BF16", "Q2_K", "IQ1_S", "IQ2_XXS", "IQ4_NL", "IQ4_XS", "TQ1_0", "MXFP4")
    assert all(blocks.can_be_read(Kind[name]) for name in named)


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_a_language_model_is_one(architecture: str, tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", architecture, also={"general.type": "model"})
    check.language_model(GGUFFile(path))
