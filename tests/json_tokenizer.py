"""A small byte-level BPE tokenizer that can write JSON, and a tiny model with its vocabulary."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from foretoken.testing import Pair, tiny_pair

_WORDS = [
    *('{"', '":', '":"', '","', '"}', '":{"', "],", '["', "name", "age", "true", "false", "null"),
    *("red", "green", "blue", "tags", " the", "12", "ab", "</think>"),
]
EOS = "<eos>"


@cache
def tokenizer() -> Any:
    """All bytes, some pieces of JSON and words, and an end of text, which is the last id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: i for i, character in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        written = word.replace(" ", "Ġ")
        for end in range(2, len(written) + 1):
            if written[:end] not in vocab:
                vocab[written[:end]] = len(vocab)
                merges.append((written[: end - 1], written[end - 1]))
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=EOS, clean_up_tokenization_spaces=False
    )


@cache
def pair() -> Pair:
    """A target in float64 and a draft model that agrees with it now and then."""
    return tiny_pair(len(tokenizer()) + 7, max_length=256)  # as models have padded vocabularies


def ids(text: str) -> list[int]:
    """The tokens of a text."""
    found: list[int] = tokenizer()(text, add_special_tokens=False)["input_ids"]
    return found
