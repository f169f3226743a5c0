"""Conversations are read from files, in every spelling."""

from __future__ import annotations

import gzip
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
    for text in ('[{"turns": ["a"]},\n', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ForetokenError, match=r"x\.jsonl: not JSON"):
            read_conversations(path)


def test_files_as_editors_leave_them(path: Path) -> None:
    """With a mark of UTF-8 at the beginning, lines that end as Windows' do, and none at the end."""
    path.write_bytes('\ufeff{"prompt": "é"}\r\n\r\n{"prompt": "b"}'.encode())
    assert [each.messages[0]["content"] for each in read_conversations(path)] == ["é", "b"]


@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.jsonl"])
def test_one_list(tmp_path: Path, name: str) -> None:
    """As ShareGPT and Alpaca are distributed, whatever the file is called."""
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    text = json.dumps([{"id": "1", "conversations": turns}, {"turns": ["c"]}], indent=1)
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert [len(each.whole) for each in read_conversations(tmp_path / name)] == [2, 0]
    (tmp_path / name).write_text('[{"turns": ["a"]}, 3]')
    if not name.endswith("gz"):
        with pytest.raises(ForetokenError, match="entry 2: it has none of"):
            read_conversations(tmp_path / name)


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_empty_lines_first(tmp_path: Path, name: str) -> None:
    """Before a list, and before lines, which are counted as they are in the file."""
    opened: Any = gzip.open if name.endswith("gz") else open
    read = []
    for text in (
        '\n \n [{"turns": ["a"]},\n{"turns": ["b"]}]',
        '\n\n{"turns": ["a"]}\n',
        "\n\n",
        "",
    ):
        with opened(tmp_path / name, "wt") as file:
            file.write(text)
        read.append(len(read_conversations(tmp_path / name)))
    assert read == [2, 1, 0, 0]
    with opened(tmp_path / name, "wt") as file:
        file.write('\n\n{"question": "b"}\n')
    with pytest.raises(ForetokenError, match="line 3: it has none of"):
        read_conversations(tmp_path / name)


def test_a_damaged_archive(tmp_path: Path) -> None:
    """Cut, with wrong bytes in it, and none at all."""
    path, whole = tmp_path / "x.jsonl.gz", gzip.compress(b'{"turns": ["a"]}\n' * 999)
    for damaged in (whole[:-20], whole[:15] + b"\xff" * 9 + whole[24:], b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(ForetokenError, match=r"prompts in .*gz can't be read"):
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
