"""Structured output through transformers' `generate`: each row is what was asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers as tf

from foretoken import ForetokenError, StructuredOutputsParams, assisted
from json_tokenizer import ids, tokenizer

pytest.importorskip("llguidance")
REGEX = "(ab|12){2,6}(red|green)"


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    ends = {"eos_token_id": tokenizer().eos_token_id, "pad_token_id": tokenizer().eos_token_id}
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.4,
        **ends,
    )
    return tf.LlamaForCausalLM(config).double().eval()


def written(model: Any, method: str, sample: bool, form: Any) -> list[str]:
    """The new texts of two rows, the second padded on the left."""
    rows = [ids("hello ab"), ids("the")]
    width = max(map(len, rows))
    given = [[0] * (width - len(row)) + row for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    torch.manual_seed(3)
    hook = assisted(method, tokenizer=tokenizer(), structured_outputs=form)
    out = model.generate(
        torch.tensor(given),
        attention_mask=torch.tensor(mask),
        do_sample=sample,
        max_new_tokens=40,
        custom_generate=hook,
    )
    return [tokenizer().decode(row[width:], skip_special_tokens=True) for row in out]


@pytest.mark.parametrize("sample", [False, True])
def test_each_row_is_what_was_asked_for(model: Any, sample: bool) -> None:
    """With every method the text of plain constrained decoding."""
    plain = written(model, "autoregressive", sample, {"regex": REGEX})
    assert all(re.fullmatch(REGEX, text) for text in plain)
    for method in ("pld", "grammar+suffix"):
        params = StructuredOutputsParams(regex=REGEX)
        assert written(model, method, sample, params) == plain


def test_scores_beside_a_grammar(model: Any) -> None:
    """Would lack what it forbids, and are refused; the model's own logits are not."""
    hook = assisted(tokenizer=tokenizer(), structured_outputs={"regex": REGEX})
    given = {"max_new_tokens": 4, "return_dict_in_generate": True, "custom_generate": hook}
    prompt = torch.tensor([ids("the")])
    with pytest.raises(ForetokenError, match=r"output_scores would lack .*; leave one of them out"):
        model.generate(prompt, output_scores=True, **given)
    assert len(model.generate(prompt, output_logits=True, **given).logits) == 4


def test_what_cannot_be_had_is_one_sentence(model: Any) -> None:
    with pytest.raises(ForetokenError, match="tokenizer"):
        assisted(structured_outputs={"regex": "a"})
    with pytest.raises(ForetokenError, match="'regex'"):
        assisted(tokenizer=tokenizer(), structured_outputs={"regexp": "a"})
    with pytest.raises(ForetokenError, match="regex of structured_outputs"):
        written(model, "pld", False, {"regex": "("})
