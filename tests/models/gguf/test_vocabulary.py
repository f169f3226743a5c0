"""Tokenizers as metadata: read again, they are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import gguf_files
from foretoken.errors import ForetokenError
from foretoken.models.gguf import tokenizer, vocabulary
from foretoken.models.gguf.reader import GGUFFile
from models.gguf.test_tokenizer import CASES, TEXTS


@pytest.mark.parametrize("case", CASES)
def test_a_tokenizer_there_and_back(case: str, tmp_path: Path) -> None:
    """Ids, special tokens and the template, of every kind that is read."""
    architecture, metadata = CASES[case]
    first = GGUFFile(gguf_files.written(tmp_path / "a.gguf", architecture, also=metadata))
    made = tokenizer.read(first)
    pairs = vocabulary.metadata(made, len(first.strings("tokenizer.ggml.tokens")) + 3)
    bare = {key: pairs.get(key) for key in (*gguf_files.VOCABULARY, *metadata)}
    again = gguf_files.written(tmp_path / "b.gguf", architecture, also={**bare, **pairs})
    same = tokenizer.read(GGUFFile(again))
    assert GGUFFile(again).strings("tokenizer.ggml.tokens")[-3:][0].startswith("[PAD")
    for text in (*TEXTS, "aba ab  aba<img>a</s>"):
        for special in (True, False):
            ids = made(text, add_special_tokens=special)["input_ids"]
            assert same(text, add_special_tokens=special)["input_ids"] == ids, text
            assert same.decode(ids) == made.decode(ids)
    for name in ("bos_token_id", "eos_token_id", "unk_token_id", "chat_template"):
        assert getattr(same, name) == getattr(made, name), name


def bytewise(pattern: str) -> Any:
    vocabulary = {token: i for i, token in enumerate(gguf_files.tokens())}
    made = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, as_bytes])
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


NAMED: list[Any] = [
    ("llama3", tokenizer.WORDS["llama3"], True),
    ("smaug-bpe", tokenizer.WORDS["llama3"], False),
    ("tekken", tokenizer.WORDS["tekken"], True),
    ("qwen2", tokenizer.WORDS["qwen2"], False),
    (None, tokenizer.WORDS["tekken"], False),
    (None, tokenizer.WORDS["qwen2"], True),
]


@pytest.mark.parametrize(("name", "pattern", "whole"), NAMED)
def test_the_name_says_whether_words_are_merged(name: Any, pattern: str, whole: bool) -> None:
    made = bytewise(pattern)
    made.backend_tokenizer.model.ignore_merges = whole
    if name is None:
        with pytest.raises(ForetokenError, match="its way of cutting text has no name"):
            vocabulary.metadata(made, 500)
    else:
        assert vocabulary.metadata(made, 500)["tokenizer.ggml.pre"] == name


@pytest.mark.parametrize(("digits", "name"), [(None, "gpt-2"), (True, "smollm"), (False, None)])
def test_the_name_says_whether_digits_are_words(digits: bool | None, name: str | None) -> None:
    made = bytewise("a")
    cuts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if digits is not None:
        cuts.insert(0, pre_tokenizers.Digits(individual_digits=digits))
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    if name is None:
        with pytest.raises(ForetokenError, match="its way of cutting text has no name"):
            vocabulary.metadata(made, 500)
    else:
        assert vocabulary.metadata(made, 500)["tokenizer.ggml.pre"] == name


def test_what_cannot_be_written() -> None:
    with pytest.raises(ForetokenError, match="its way of cutting text has no name"):
        vocabulary.metadata(bytewise("[a-z]+"), 500)
    with pytest.raises(ForetokenError, match="it has tokens up to 262, and the model 100"):
        vocabulary.metadata(bytewise(r"\s+"), 100)
    with pytest.raises(ForetokenError, match="it has tokens up to 262, and the model 262"):
        vocabulary.metadata(bytewise(r"\s+"), 262)
    uncut, as_bytes = bytewise("a"), pre_tokenizers.ByteLevel(use_regex=False)
    uncut.backend_tokenizer.pre_tokenizer = as_bytes
    with pytest.raises(ForetokenError, match="its way of cutting text has no name"):
        vocabulary.metadata(uncut, 500)
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    with pytest.raises(ForetokenError, match="it is no BPE"):
        vocabulary.metadata(words, 10)


def test_what_each_token_is() -> None:
    """By its type and, in SentencePiece's way, the place of the merge that makes it."""
    tokens = ("<unk>", "<0x41>", "<0xlong>", "a", "b", "ab", "ba")
    ids = {token: i for i, token in enumerate(tokens)}
    merges = [("a", "b"), ("b", "a")]
    made = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))
    pairs = vocabulary.metadata(PreTrainedTokenizerFast(tokenizer_object=made), len(tokens) + 1)
    assert pairs["tokenizer.ggml.token_type"] == [2, 6, 1, 1, 1, 1, 1, 5]
    assert pairs["tokenizer.ggml.scores"] == [*[0.0] * 6, -1.0, 0.0]
