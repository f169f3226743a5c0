"""Trains the zoo's byte-level BPE (8,192 ids) and saves it as an ordinary tokenizer folder.

Pre-tokenised with Llama 3's published pattern. Digits are taken out of the text it is trained on,
so no two digits ever merge: a model of this size learns sums digit by digit or not at all. The
chat template puts no text of its own between the turns, only the special tokens, which saves a
small model tokens it would have to read.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from foretoken.files import write_file

EOS, BOS, USER, ASSISTANT, SYSTEM = (
    "<|endoftext|>",
    "<|startoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)
SPECIALS = [EOS, BOS, USER, ASSISTANT, SYSTEM]
EOS_ID, BOS_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID = range(5)
VOCAB = 8192
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((re.sub(r"\d", " ", text) for text in texts), trainer)
    return tokenizer


def balanced(
    texts_by_source: dict[str, list[str]], per_source: int, seed: int = 0
) -> Iterator[str]:
    """At most `per_source` characters of each source: no long one fills the vocabulary."""
    rng = random.Random(seed)
    for source in sorted(texts_by_source):
        texts = list(texts_by_source[source])
        rng.shuffle(texts)
        left = per_source
        for text in texts:
            if left <= 0:
                break
            yield text[:left]
            left -= len(text)


def save(tokenizer: Tokenizer, folder: Path, max_len: int = 2560) -> None:
    """Write the folder, tokenizer.json last: it shows that all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "added_tokens_decoder": {
            str(i): {"content": t, "special": True, **special} for i, t in enumerate(SPECIALS)
        },
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_len,
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": BOS, "eos_token": EOS, "pad_token": EOS}, indent=2) + "\n"
    )
    write_file(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
