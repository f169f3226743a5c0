"""Prompts are read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import LLM, ForetokenError
from foretoken.testing import ByteTokenizer, Pair
from foretoken.train.data import fixed, prompt_ids, read_conversations


def test_bad_prompts(tmp_path: Path) -> None:
    """The message names the line, or that the file holds no JSON objects."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"turns": ["a"]}\n{"question": "b"}\n')
    with pytest.raises(ForetokenError, match="line 2 has neither"):
        read_conversations(path)
    path.write_text("no json\n")
    with pytest.raises(ForetokenError, match="line 1: not JSON"):
        read_conversations(path)


def test_a_text_that_no_tokenizer_reads(pair: Pair, tmp_path: Path) -> None:
    """Half of a surrogate pair in a line of JSON, as a prompt and as an answer."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "\\ud83d"}\n{"text": "\\ud83d"}\n')
    asked, told = read_conversations(path)
    llm = LLM(pair.target, tokenizer=ByteTokenizer())
    with pytest.raises(ForetokenError, match="half of a surrogate pair"):
        prompt_ids(llm, asked, asked.messages)
    with pytest.raises(ForetokenError, match="half of a surrogate pair"):
        fixed(llm, [told], 9)
