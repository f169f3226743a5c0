"""Trained models' files: transformers' ids and logits."""

from __future__ import annotations

import itertools
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

import stored_models
from foretoken.models.load import load_model, load_tokenizer
from foretoken.testing import logits_after
from stored_models import real_file

SMALL, LARGE = "smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct"
OTHERS = ("gemma-3-270m", "qwen2.5-coder-0.5b-instruct")
ROOT = Path(__file__).resolve().parents[3]
TEXT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +"
HALF = 1e-3
"""By how much weights in float16 change logits, as a share of the largest: docs/gguf.md says it."""

LYING = 0.1
"""The same with blocks as they lie, where activations have 8 bits."""

pytestmark = pytest.mark.real


def with_slow(first: str, *others: str) -> list[Any]:
    """The names as parameters; all but the first are for `make test-all`."""
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


own_tokenizer = cache(load_tokenizer)


@cache
def lines() -> list[str]:
    """2,000 lines: this project's pages and code, which have signs of many kinds, and noise."""
    files = sorted(ROOT.glob("src/foretoken/**/*.py")) + sorted(ROOT.glob("**/*.md"))
    read = itertools.chain.from_iterable(file.read_text().splitlines() for file in files)
    some = random.Random(0)
    kept = some.sample([line for line in read if line.strip()], 1400)
    ranges = ((32, 127), (160, 0x250), (0x370, 0x600), (0x900, 0xE80), (0x3040, 0x3100))
    ranges += ((0x4E00, 0x9000), (0xAC00, 0xD700), (0x1F300, 0x1F700))

    def letter() -> str:
        if some.random() < 0.25:
            return some.choice(" \t\n ")
        return chr(some.randrange(*some.choice(ranges)))

    kept += ["".join(letter() for _ in range(40)) for _ in range(400)]
    marks = ("<|im_start|>", "<bos>", "<|endoftext|>", "<end_of_turn>", "  ", " 12", "345", "x\n\n")
    return kept + ["".join(some.choices(marks, k=12)) for _ in range(200)]


def test_where_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `foretoken zoo fetch` puts them, and in a folder beside; without, a test is skipped."""
    assert stored_models.REAL[0].parts[-1] == "models"
    monkeypatch.setattr(stored_models, "REAL", [tmp_path / "fetched", tmp_path / "other"])
    with pytest.raises(pytest.skip.Exception, match=r"neither .*fetched.mine\.gguf nor .* there"):
        real_file("mine")
    for folder in ("other", "fetched"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.gguf").touch()
        assert real_file("mine").parent == tmp_path / folder


@pytest.mark.parametrize("name", with_slow(SMALL, *OTHERS))
def test_ids_of_2000_lines(name: str) -> None:
    path = real_file(name)
    ours = own_tokenizer(path)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if name == SMALL:  # whose makers cut out digits first, which transformers' reader leaves out
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    for line in lines():
        ids = theirs(line)["input_ids"]
        assert ours(line)["input_ids"] == ids, line
        assert ours.decode(ids) == theirs.decode(ids), line
    assert ours.chat_template == theirs.chat_template
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


@cache
def theirs(name: str) -> torch.Tensor:
    """[V] transformers' logits after `TEXT`."""
    path = real_file(name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([own_tokenizer(path)(TEXT)["input_ids"]])).logits
    return logits[0, -1]


def off(name: str, **options: Any) -> float:
    """How far our logits are from transformers', as a share of the largest."""
    path = real_file(name)
    model = load_model(path, device="cpu", **options)
    ours = logits_after(model, own_tokenizer(path)(TEXT)["input_ids"])
    return float((ours - theirs(name)).abs().max() / theirs(name).abs().max())


@pytest.mark.parametrize("name", with_slow(SMALL, *OTHERS, LARGE))
def test_logits_in_float32_and_with_weights_in_float16(name: str) -> None:
    assert off(name, dtype="float32") < 1e-5
    assert off(name, backend="half") < HALF
    assert off(name) < LYING
