"""Prompts for commands that need some."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import LLM, ForetokenError
from foretoken.cli.prompts import given_or_bundled, has_chat_template, prompt_ids
from foretoken.testing import ByteTokenizer, Pair


def test_through_the_template_where_there_is_one(
    checkpoints: tuple[Path, Path], pair: Pair
) -> None:
    """A tokenizer without a template gives the bare text's ids; without a tokenizer there are
    none."""
    llm = LLM(checkpoints[0])
    assert has_chat_template(llm)
    assert prompt_ids(llm, "Hi") == llm.chat_prompt([{"role": "user", "content": "Hi"}])
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = None
    bare = LLM(pair.target, tokenizer=tokenizer)
    assert not has_chat_template(bare)
    assert prompt_ids(bare, "Hi") == tokenizer("Hi")["input_ids"]
    with pytest.raises(ForetokenError, match="--tokenizer"):
        prompt_ids(LLM(pair.target), "Hi")


def test_the_users_prompts_replace_the_bundled_ones(checkpoints: tuple[Path, Path]) -> None:
    """So many of the bundled ones, or all of the user's."""
    llm = LLM(checkpoints[0])
    assert given_or_bundled(llm, ["a", "b"], 1) == [
        tuple(prompt_ids(llm, text)) for text in ("a", "b")
    ]
    bundled = given_or_bundled(llm, None, 3)
    assert len(bundled) == 3 and len({*bundled}) == 3


def test_a_text_that_no_tokenizer_reads(pair: Pair) -> None:
    """Bytes of another encoding on the command line come as halves of surrogate pairs."""
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = None
    bare = LLM(pair.target, tokenizer=tokenizer)
    with pytest.raises(ForetokenError, match="half of a surrogate pair"):
        prompt_ids(bare, "caf\udce9")
