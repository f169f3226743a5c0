"""The tiny models, and the tokenizer."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from foretoken import SamplingParams
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    TableModel,
    logits_after,
    native,
    related,
    target_distribution,
    tiny_transformers,
)


def test_a_table_is_what_it_says(pair: Pair) -> None:
    """Its logits are the sum over what a place sees; a Markov table's distribution is its row."""
    table = TableModel.random(4, seed=1)
    text = [0, 3, 1, 1, 2, 0, 3]
    expected = sum(table.table[i % 5, token] for i, token in enumerate(text))
    torch.testing.assert_close(logits_after(table, text), expected)
    windowed = TableModel(table.table, window=2)
    torch.testing.assert_close(
        logits_after(windowed, text), table.table[5 % 5, 0] + table.table[6 % 5, 3]
    )
    rows = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    distribution = target_distribution(TableModel.markov(rows), [0], SamplingParams(), 2)
    assert distribution == {(0, 0): 0.25, (0, 1): 0.25, (1, 1): 0.5}


def test_tiny_models_are_repeatable_and_related() -> None:
    """The same seed gives the same weights; the noisy copy is near, and the original untouched."""
    one = tiny_transformers(30)
    torch.manual_seed(1)  # whatever was drawn before
    again = tiny_transformers(30)
    near = related(one, 0.02)
    for a, b, c in zip(one.parameters(), again.parameters(), near.parameters(), strict=True):
        assert a.equal(b) and (a.ndim == 1 or 0 < float((a - c).detach().abs().max()) < 0.2)
    assert logits_after(native(one), [1, 2]).dtype == torch.float64
    with torch.no_grad():
        expected = one(torch.tensor([[1, 2]]), past_key_values=DynamicCache()).logits[0, -1]
    torch.testing.assert_close(logits_after(native(one), [1, 2]), expected, atol=1e-10, rtol=0)


def test_byte_tokenizer() -> None:
    """Any text there and back; the last id is the end and is nothing in plain text."""
    for vocab in (257, 97):
        tokenizer = ByteTokenizer(vocab)
        text = "Hello, world! ~\n" + ("é€😀" if vocab == 257 else "")
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and max(ids) < vocab - 1 == tokenizer.eos_token_id
        assert tokenizer.decode([*ids, vocab - 1]) == text + "<eos>"
        assert tokenizer.decode([*ids, vocab - 1], skip_special_tokens=True) == text
        assert len(tokenizer) == vocab
    turns, template = [{"role": "user", "content": "Hi"}], tokenizer.apply_chat_template
    assert template(turns, tokenize=False) == "user: Hi\n"
    asked = template(turns, tokenize=False, add_generation_prompt=True)
    assert asked == "user: Hi\nassistant: "
    assert template(turns, add_generation_prompt=True) == tokenizer.encode(asked)
