"""Perplexity of known distributions, and windows of texts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import gguf_files
from foretoken.bench.measure import perplexity
from foretoken.errors import ForetokenError
from foretoken.testing import TableModel, logits_after


def test_of_what_is_known() -> None:
    """e to the mean of what each token after the first is worth, over all windows."""
    model = TableModel.random(7, 3)
    windows = [[1, 2, 3, 4], [5, 6, 0]]
    parts = [
        -logits_after(model, window[:at]).log_softmax(0)[window[at]]
        for window in windows
        for at in range(1, len(window))
    ]
    expected = math.exp(float(torch.stack(parts).mean()))
    seen: list[int] = []
    found = perplexity.losses(model, windows, lambda: seen.append(1))
    assert found[:, 1].tolist() == [3, 2] and len(seen) == 2
    assert perplexity.perplexity(found) == pytest.approx(expected, rel=1e-5)


def test_a_text_that_no_tokenizer_reads() -> None:
    """As standard input gives it where its bytes are no UTF-8."""
    with pytest.raises(ForetokenError, match="half of a surrogate pair"):
        perplexity.cut("mini", "caf\udce9 au lait", 4, 4)


def test_models_and_windows_that_give_no_number(tmp_path: Path) -> None:
    """One that transformers' code runs, and windows beyond the context, where a perplexity says
    nothing of the model."""
    other = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=97))
    other.save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ForetokenError, match="gpt2 doesn't run natively, as its family 'gpt2'"):
        list(perplexity.rows(str(tmp_path / "gpt2"), ["q4"], [[1, 2, 3]], lambda: None))
    model = str(gguf_files.written(tmp_path / "a.gguf"))
    longest = perplexity.load_model(model).max_length
    windows = [[1] * longest, [1] * (longest + 1)]
    with pytest.raises(ForetokenError, match=f"has {longest + 1} tokens and the context"):
        list(perplexity.rows(model, ["q4"], windows, lambda: None))


def test_the_interval_is_of_the_ratio() -> None:
    """Every window a hundredth worse a token: no doubt; windows that differ: the middle lies in
    it."""
    exact = np.array([[20.0, 10], [36.0, 12], [30.0, 11]])
    worse = exact + np.array([[0.1, 0], [0.12, 0], [0.11, 0]])
    assert perplexity.ratio_interval(exact, worse) == pytest.approx((math.exp(0.01),) * 2)
    mixed = exact + np.array([[0.5, 0], [-0.3, 0], [0.1, 0]])
    low, high = perplexity.ratio_interval(exact, mixed)
    assert low < perplexity.perplexity(mixed) / perplexity.perplexity(exact) < high


def test_windows(tmp_path: Path) -> None:
    """Of the text's first tokens; a text that is too short is refused with both numbers."""
    model = str(gguf_files.written(tmp_path / "a.gguf"))
    whole = perplexity.cut(model, "the cat in the hat", 100, 100, exactly=False)
    first = perplexity.load_tokenizer(model).bos_token_id
    start = [] if first is None else [first]
    ids = whole[0][len(start) :]
    cut = perplexity.cut(model, "the cat in the hat", 5, 3)
    assert cut == [[*start, *ids[:3]], [*start, *ids[3:5]]]
    for text, tokens, exactly, told in (
        ("the cat", 100, True, "tokens, and 100"),
        ("", 100, False, "0 tokens, and 2"),
    ):
        with pytest.raises(ForetokenError, match=told):
            perplexity.cut(model, text, tokens, 10, exactly=exactly)
