"""Encoder–decoders from folders, and through `LLM`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.models.load import load_model
from foretoken.models.seq2seq.load import load
from foretoken.testing.models import ByteTokenizer
from seq2seq_models import NAMES, SOURCES, VOCAB, tiny, written

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(params=NAMES)
def name(request: Any) -> str:
    return str(request.param)


def saved(name: str, folder: Path) -> Path:
    tiny(name).save_pretrained(folder)
    return folder


def test_a_folder_writes_what_transformers_writes(name: str, tmp_path: Path) -> None:
    expected = [written(tiny(name), source, 8)[:8] for source in SOURCES[:2]]
    with LLM(saved(name, tmp_path), dtype="float64", device="cpu") as llm:
        outputs = llm.generate(SOURCES[:2], GREEDY)
        assert [output.token_ids for output in outputs] == expected
        assert [output.prompt_token_ids for output in outputs] == list(SOURCES[:2])


def test_pickled_weights(name: str, tmp_path: Path) -> None:
    """As most of Marian's models and T5 1.1's have them."""
    file = saved(name, tmp_path) / "model.safetensors"
    torch.save(load_file(file), tmp_path / "pytorch_model.bin")
    file.unlink()
    expected = written(tiny(name), SOURCES[0], 8)[:8]
    with LLM(tmp_path, dtype="float64", device="cpu") as llm:
        assert llm.generate(SOURCES[:1], GREEDY)[0].token_ids == expected


def test_a_text_is_the_source(tmp_path: Path) -> None:
    folder, tokenizer = saved("bart", tmp_path), ByteTokenizer(VOCAB)
    source = tokenizer.encode("A SOURCE")
    llm = LLM(
        folder,
        dtype="float64",
        device="cpu",
        tokenizer=tokenizer,
        speculative_config={"method": "sad"},
    )
    with llm:
        [output] = llm.generate("A SOURCE", GREEDY)
        assert output.token_ids == written(tiny("bart"), source, 8)[:8]
        assert (output.prompt, output.prompt_token_ids) == ("A SOURCE", source)
        assert output.stats.drafted > 0
        with pytest.raises(ForetokenError, match="leave prompt_logprobs and LLM"):
            llm.score("A SOURCE", "IT")


NORM = "layers.0.final_layer_norm.weight"


def only(folder: Path, *names: str) -> Any:
    """Load a folder that holds these tensors alone."""
    config = tiny("bart").config
    save_file({name: torch.ones(config.d_model) for name in names}, folder / "model.safetensors")
    config.save_pretrained(folder)
    return load(folder, config, torch.float32, torch.device("cpu"), "plain")


@pytest.mark.parametrize("prefix", ["", "model."])
def test_more_layers_than_a_configuration_has(prefix: str, tmp_path: Path) -> None:
    """Of either side, which may be of different depths."""
    for side, count in (("encoder", 2), ("decoder", 3)):
        last = f"{prefix}{side}.layers.{count}.final_layer_norm.weight"
        with pytest.raises(ForetokenError, match=f"{side} layer {count}, and its .* {count - 1};"):
            only(tmp_path, f"{prefix}{side}.{NORM}", last)


def test_tensors_of_another_kind_of_model_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A classifier's head is; what old files have beside a model, and transformers doesn't read
    either, is not."""
    usual = (f"model.encoder.{NORM}", f"decoder.{NORM}")
    bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    with pytest.raises(ForetokenError, match="incomplete"):
        only(tmp_path, *usual, "encoder.version", "decoder.version", bias)
    assert not caplog.text
    with pytest.raises(ForetokenError, match="incomplete"):
        only(tmp_path, *usual, "classification_head.dense.weight")
    assert "has 1 tensors" in caplog.text and "'classification_head.dense.weight'" in caplog.text


def test_longer_texts(tmp_path: Path) -> None:
    """As long as is asked for where positions are distances, as T5's, which knows no bound; others
    have learned so many and no more."""
    path, own = saved("t5", tmp_path / "t5"), 512
    for asked, found in ((own + 1, own + 1), (own - 1, own), (None, own)):
        assert load_model(path, max_model_len=asked).max_length == found
    source = list(range(3, 8)) * 110
    with LLM(path, dtype="float64", device="cpu", max_model_len=700) as llm:
        assert llm.generate([source], GREEDY)[0].token_ids == written(tiny("t5"), source, 8)[:8]
    with pytest.raises(ForetokenError, match="max_model_len is 100000 and the model's context"):
        LLM(saved("bart", tmp_path / "bart"), max_model_len=100_000)


def test_layers_are_not_read_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match="layer by layer: it is an encoder–decoder; leave"):
        load_model(saved("t5", tmp_path), weights_memory=2**20)


def test_a_gguf_file_is_refused() -> None:
    config, cpu = tiny("t5").config, torch.device("cpu")
    with pytest.raises(ForetokenError, match=r"t5\.gguf .* it is a GGUF file; use a folder"):
        load(Path("t5.gguf"), config, torch.float32, cpu, "auto")


def test_folders_that_cant_be_served(tmp_path: Path) -> None:
    folder = saved("t5", tmp_path)
    with pytest.raises(ForetokenError, match="transformers' code doesn't take the positions"):
        load_model(folder, device="cpu", model_impl="transformers")
    file = folder / "model.safetensors"
    weights = load_file(file)
    deep = {k.replace("encoder.block.0", "encoder.block.2"): v.clone() for k, v in weights.items()}
    save_file({**weights, **deep}, file)
    with pytest.raises(ForetokenError, match="encoder layer 2, and its configuration ends at"):
        load_model(folder, device="cpu")
    save_file({k: v for k, v in weights.items() if "block.1.layer.0" not in k}, file)
    with pytest.raises(ForetokenError, match=r"no tensor '.*block\.1\.layer\.0"):
        load_model(folder, device="cpu")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "d_ff": 7}))
    with pytest.raises(ForetokenError, match="has the shape"):
        load_model(folder, device="cpu")
    (folder / "config.json").write_text(json.dumps({"model_type": "pegasus"}))
    with pytest.raises(ForetokenError, match="'pegasus' is not one of t5, bart, mbart, marian"):
        load_model(folder, device="cpu")
