"""Conversations are read from files, in every spelling."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM, ForetokenError
from foretoken.spellings import Conversation
from foretoken.testing import ByteTokenizer, Pair
from foretoken.train.data import read_conversations
from foretoken.train.turns import fixed, prompt_ids


def read(path: Path, *rows: Any) -> list[Conversation]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_conversations(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.jsonl"


def test_where_nobody_asks(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such conversations, which ShareGPT has, are left out and counted; some have no turns."""
    greeting = {"conversations": [{"from": "gpt", "value": "b"}]}
    none: list[Any] = [{"conversations": []}, {"messages": []}, {"data": []}]
    with caplog.at_level(logging.WARNING):
        found = read(path, {"turns": ["a"]}, greeting, {"turns": ["a"]}, *none)
    assert len(found) == 2
    assert "4 of 6 conversations have no user's turn and are left out, the first in line 2" in (
        caplog.text
    )


def test_what_is_no_conversation(path: Path) -> None:
    """The message names the file, the line, and what is wrong there."""
    with pytest.raises(ForetokenError, match=r"x\.jsonl, line 2: it has none of \"turns\""):
        read(path, {"turns": ["a"]}, {"question": "b"})


def test_no_json(path: Path) -> None:
    path.write_text("no json\n")
    with pytest.raises(ForetokenError, match="line 1: not JSON"):
        read_conversations(path)


def test_a_text_that_no_tokenizer_reads(pair: Pair, path: Path) -> None:
    """Half of a surrogate pair in a line of JSON, as a prompt and as an answer."""
    path.write_text('{"prompt": "\\ud83d"}\n{"text": "\\ud83d"}\n')
    asked, told = read_conversations(path)
    llm = LLM(pair.target, tokenizer=ByteTokenizer())
    with pytest.raises(ForetokenError, match="half of a surrogate pair"):
        prompt_ids(llm, asked, asked.messages)
    with pytest.raises(ForetokenError, match="half of a surrogate pair"):
        fixed(llm, [told], 9)
