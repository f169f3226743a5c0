"""Conversations are read from files, in every spelling."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM, ForetokenError
from foretoken.testing import ByteTokenizer, Pair
from foretoken.train.data import Conversation, read_conversations
from foretoken.train.turns import fixed, prompt_ids

ASKED = {"role": "user", "content": "a"}
SAID = {"role": "assistant", "content": "b"}
RULES = {"role": "system", "content": "s"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
RESULT = {"role": "tool", "content": "9"}


def read(path: Path, *rows: Any) -> list[Conversation]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_conversations(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.jsonl"


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED, SAID, ASKED, SAID]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, SAID] * 2},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}] * 2},
        {"conversations": [{"from": "user", "value": "a"}, {"from": "bing", "value": "b"}] * 2},
        {"conversations": [ASKED, SAID, ASKED, SAID], "id": "x"},
        {"id": "0", "data": ["a", "b", "a", "b"]},
        {"prompt": [ASKED, SAID, ASKED], "completion": [SAID]},
        {"prompt": [ASKED, SAID, ASKED], "response": "b"},
    ],
)
def test_spellings_of_a_conversation(row: dict[str, Any], path: Path) -> None:
    """Up to the last user's turn is the prompt; all turns are there to learn from."""
    [found] = read(path, row)
    assert found == Conversation((ASKED, SAID, ASKED), whole=(ASKED, SAID, ASKED, SAID))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [RULES, ASKED, SAID]},
        {"system": "s", "messages": [ASKED, SAID]},
        {"system": "s", "conversations": [{"from": "human", "value": "a"}, SAID]},
        {"conversations": [{"from": "system", "value": "s"}, ASKED, SAID]},
    ],
)
def test_a_system_message(row: dict[str, Any], path: Path) -> None:
    [found] = read(path, row)
    assert found == Conversation((RULES, ASKED), whole=(RULES, ASKED, SAID))


def test_tools_turns(path: Path) -> None:
    """What a tool says is answered too; keys beside role and content are kept."""
    named = {**RESULT, "name": "f"}
    [found] = read(path, {"messages": [ASKED, CALL, named, SAID]})
    assert found == Conversation((ASKED, CALL, named), whole=(ASKED, CALL, named, SAID))
    with pytest.raises(ForetokenError, match="line 1 declares tools"):
        read(path, {"messages": [ASKED, SAID], "tools": [{"type": "function"}]})
    assert read(path, {"messages": [ASKED, SAID], "tools": []})


def test_prompts_and_texts(path: Path) -> None:
    """Alone, or with an answer; raw where they name no roles."""
    rows = [
        {"turns": ["a", "x", "y"]},
        {"prompt": "a"},
        {"prompt": "a", "completion": "b"},
        {"text": "b"},
        {"instruction": "a", "input": "x", "output": "b"},
        {"instruction": "a", "input": "", "output": "b"},
    ]
    longer = {"role": "user", "content": "a\n\nx"}
    assert read(path, *rows) == [
        Conversation((ASKED,), ("x", "y")),
        Conversation((ASKED,), raw=True),
        Conversation((ASKED,), whole=(ASKED, SAID), raw=True),
        Conversation((), whole=(SAID,), raw=True),
        Conversation((longer,), whole=(longer, SAID)),
        Conversation((ASKED,), whole=(ASKED, SAID)),
    ]


def test_where_nobody_asks(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such conversations, which ShareGPT has, are left out and counted."""
    greeting = {"conversations": [{"from": "gpt", "value": "b"}]}
    with caplog.at_level(logging.WARNING):
        found = read(path, {"turns": ["a"]}, greeting, {"turns": ["a"]}, greeting)
    assert len(found) == 2
    assert "2 of 4 conversations have no user's turn and are left out, the first in line 2" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "b"}, 'line 2 has none of "turns", "messages", "conversations", "data"'),
        (["a"], "line 2 has none of"),
        ({"conversations": [{"from": "nobody", "value": "x"}]}, "from 'nobody'; it must be from"),
        ({"conversations": [{"from": "gpt", "value": 3}]}, "A turn is 3; it must be a text"),
        ({"messages": [{"role": "user", "content": 3}]}, "line 2: The content of message 0 is 3"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "of type 'image'"),
        ({"data": "a"}, "must be a list of texts"),
        ({"turns": []}, """line 2 doesn't have "turns" as they must be"""),
        ({"prompt": 7}, "A turn is 7"),
    ],
)
def test_what_is_no_conversation(row: Any, said: str, path: Path) -> None:
    """The message names the line, and what is wrong there."""
    with pytest.raises(ForetokenError) as error:
        read(path, {"turns": ["a"]}, row)
    assert said in str(error.value) and "line 2" in str(error.value)


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
