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
