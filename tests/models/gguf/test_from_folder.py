"""Folders as what a GGUF file holds: what it can't hold is refused, not changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import stored_models
from foretoken.cli.commands import app
from foretoken.errors import ForetokenError
from foretoken.models import gguf
from foretoken.models.gguf.reader import GGUFFile
from foretoken.models.load import find, load_model, load_tokenizer, read_config
from foretoken.testing import logits_after

IDS = stored_models.IDS
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
SERVED: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3": {"rope_parameters": LLAMA3},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "yarn": {"rope_parameters": YARN | {"original_max_position_embeddings": 32}},
    "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "window": ("mistral", {"sliding_window": 8}, "windows is"),
    "activation": ("llama", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act is"),
    "rope": (
        "llama",
        {"rope_parameters": YARN | {"original_max_position_embeddings": 32, "beta_fast": 16}},
        "rope_parameters is",
    ),
    "llama3": ("llama", {"rope_parameters": LLAMA3 | {"low_freq_factor": 2.0}}, "rope"),
    "family": ("gemma2", {}, "A gemma2 model can't be written"),
}


def written(folder: Path, out: Path, words: Any = None) -> None:
    gguf.write_file(gguf.FolderSource(folder, read_config(folder), words), out, "F32")


@pytest.mark.parametrize("case", SERVED)
def test_what_a_configuration_says_is_kept(case: str, tmp_path: Path) -> None:
    folder = stored_models.written(tmp_path / "model", **SERVED[case])
    written(folder, tmp_path / "a.gguf")
    found = logits_after(load_model(tmp_path / "a.gguf", backend="plain"), IDS)
    expected = logits_after(load_model(folder, backend="plain"), IDS)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_a_tied_model_with_a_head_of_its_own(tmp_path: Path) -> None:
    """It stays one; the same matrix twice is written once, and a head alone is both."""
    folder = stored_models.written(tmp_path / "model", tie_word_embeddings=True)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    changes: list[tuple[Callable[[Any], Any], bool]] = [
        (lambda tensors: tensors.update({head: tensors[embedding]}), False),
        (lambda tensors: tensors.update({head: tensors[embedding].flip(0)}), True),
        (lambda tensors: tensors.pop(embedding), False),
    ]
    for number, (change, apart) in enumerate(changes):
        stored_models.change_tensors(folder, change)
        path = tmp_path / f"{number}.gguf"
        written(folder, path)
        assert ("output.weight" in GGUFFile(path).tensors) == apart
        gguf.FolderSource(folder, given := read_config(folder), None)
        assert given.tie_word_embeddings, "it is the caller's"
        found = logits_after(load_model(path, backend="plain"), IDS)
        expected = logits_after(load_model(folder, backend="plain"), IDS)
        assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_say_is_refused(case: str, tmp_path: Path) -> None:
    family, numbers, message = REFUSED[case]
    folder = stored_models.written(tmp_path / "model", family, **numbers)
    with pytest.raises(ForetokenError, match=message):
        written(folder, tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


def pieces(scheme: str) -> Any:
    """A tokenizer as Llama 2's, which puts a space before texts by this scheme."""
    names = ["<unk>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁ab"]
    vocabulary = {name: i for i, name in enumerate(names)}
    made = Tokenizer(
        models.BPE(
            vocabulary,
            [("a", "b"), ("▁", "ab")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token="</s>", bos_token="</s>"
    )


def test_a_space_before_a_text_alone_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers puts none after a special token where Llama's folders say so, and a file is read
    as if there was one: conversations have other ids."""
    words = pieces("always")
    folder = stored_models.written(tmp_path / "model", vocab_size=len(words))
    written(folder, tmp_path / "a.gguf", words)
    text = "ab</s>ab"
    assert load_tokenizer(tmp_path / "a.gguf")(text)["input_ids"] == words(text)["input_ids"]
    assert not caplog.records
    alone = pieces("first")
    written(folder, tmp_path / "b.gguf", alone)
    assert load_tokenizer(tmp_path / "b.gguf")(text)["input_ids"] != alone(text)["input_ids"]
    assert "what follows a special token" in caplog.text


def test_a_tensor_without_a_name_is_refused(tmp_path: Path) -> None:
    folder = stored_models.written(tmp_path / "model")
    stored_models.change_tensors(folder, lambda t: t.update({"model.extra": torch.zeros(3)}))
    with pytest.raises(ForetokenError, match=r"'model\.extra' has no name"):
        written(folder, tmp_path / "a.gguf")


def test_names_of_a_model_without_its_head(tmp_path: Path) -> None:
    """As transformers stores the model under a head: those of the whole begin with `model.`."""
    folder = stored_models.written(tmp_path / "model", tie_word_embeddings=True)
    expected = logits_after(load_model(folder, backend="plain"), IDS)

    def shorten(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    stored_models.change_tensors(folder, shorten)
    written(folder, tmp_path / "a.gguf")
    found = logits_after(load_model(tmp_path / "a.gguf", backend="plain"), IDS)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_rotary_frequencies_are_left_out(tmp_path: Path) -> None:
    """Old files have them, and they follow from the configuration."""
    folder = stored_models.written(tmp_path / "model")
    stored_models.change_tensors(
        folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    )
    written(folder, tmp_path / "a.gguf")
    found = logits_after(load_model(tmp_path / "a.gguf", backend="plain"), IDS)
    expected = logits_after(load_model(folder, backend="plain"), IDS)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_weights_that_are_quantised_are_refused(family: str, tmp_path: Path) -> None:
    """By what the configuration says, and where it is silent by their dtype: without its scales
    it would be another model."""
    folder = stored_models.written(tmp_path / "model", family)
    name = "model.layers.1.mlp.up_proj.weight"
    stored_models.change_tensors(
        folder, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)})
    )
    with pytest.raises(ForetokenError, match=r"up_proj.* is stored as F8_E4M3"):
        written(folder, tmp_path / "a.gguf")
    stored_models.change_config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(ForetokenError, match="is quantised already, and a GGUF file"):
        written(folder, tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize("ends", [[0], [0, 5], [5, 7], [0, 5, 7]])
def test_all_ends_of_texts_are_kept(ends: list[int], tmp_path: Path) -> None:
    """Of the generation configuration; the tokenizer's own stays one of them."""
    folder = tmp_path / "model"
    shutil.copytree(find("mini"), folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": ends}))
    out = tmp_path / "a.gguf"
    done = CliRunner().invoke(app, ["export", str(folder), "--to", "gguf", "--out", str(out)])
    assert done.exit_code == 0, done.output
    own = load_tokenizer(folder).eos_token_id
    assert gguf.ends_of(out) == {own, *ends}


def test_more_ends_than_a_file_can_name(tmp_path: Path) -> None:
    folder = stored_models.written(tmp_path / "model")
    with pytest.raises(ForetokenError, match=r"texts end at the tokens \[1, 2, 3, 4\]"):
        gguf.FolderSource(folder, read_config(folder), None, [1, 2, 3, 4])


INCOMPLETE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "matrix": (
        lambda folder: stored_models.change_tensors(
            folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")
        ),
        r"has no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'",
    ),
    "embedding": (
        lambda folder: stored_models.change_tensors(
            folder, lambda tensors: tensors.pop("model.embed_tokens.weight")
        ),
        r"has no tensor 'model\.embed_tokens\.weight'",
    ),
    "embedding and head": (
        lambda folder: (
            stored_models.change_config(folder, tie_word_embeddings=True),
            stored_models.change_tensors(
                folder,
                lambda tensors: (
                    tensors.pop("model.embed_tokens.weight"),
                    tensors.pop("lm_head.weight"),
                ),
            ),
        ),
        r"has no tensor 'model\.embed_tokens\.weight'",
    ),
    "layer": (
        lambda folder: stored_models.change_config(folder, num_hidden_layers=3),
        r"has no tensor 'model\.layers\.2\.",
    ),
    "layers beyond the last": (
        lambda folder: stored_models.change_config(folder, num_hidden_layers=1),
        "weights of layer 1",
    ),
    "shape": (
        lambda folder: stored_models.change_config(folder, intermediate_size=128),
        "has the shape",
    ),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_incomplete_folder_is_refused(case: str, tmp_path: Path) -> None:
    """As it is where it is loaded: a file would be as incomplete."""
    change, message = INCOMPLETE[case]
    change(folder := stored_models.written(tmp_path / "model"))
    with pytest.raises(ForetokenError, match=message):
        written(folder, tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_a_target_does_nothing_for_a_file(to: str, tmp_path: Path) -> None:
    """It is of drafters, so it is refused and not left out."""
    folder = stored_models.written(tmp_path / "model")
    written(folder, file := tmp_path / "a.gguf")
    asked = ["export", str(file), "--to", to, "--out", str(tmp_path / "b.gguf"), "--target", "mini"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1 and "--target is of a drafter" in done.stderr, done.output
    assert not (tmp_path / "b.gguf").exists()
