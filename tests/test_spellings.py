"""Conversations in every spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.spellings import Conversation, conversation

ASKED = {"role": "user", "content": "a"}
SAID = {"role": "assistant", "content": "b"}
RULES = {"role": "system", "content": "s"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
}
RESULT = {"role": "tool", "content": "9"}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED, SAID, ASKED, SAID]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, SAID] * 2},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}] * 2},
        {"conversations": [{"from": "user", "value": "a"}, {"from": "bing", "value": "b"}] * 2},
        {"conversations": [ASKED, SAID, ASKED, SAID], "id": "x"},
        {"turns": [ASKED, SAID, ASKED, SAID]},
        {"id": "0", "data": ["a", "b", "a", "b"]},
        {"prompt": [ASKED, SAID, ASKED], "completion": [SAID]},
        {"prompt": [ASKED, SAID, ASKED], "response": "b"},
    ],
)
def test_spellings_of_a_conversation(row: dict[str, Any]) -> None:
    """Up to the last user's turn is the prompt; all turns are there to learn from."""
    assert conversation(row) == Conversation((ASKED, SAID, ASKED), whole=(ASKED, SAID, ASKED, SAID))


def test_weights_of_turns() -> None:
    """They stay, in whichever spelling."""
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}]
    assert conversation({"conversations": turns}).whole == (ASKED, SAID | {"weight": 0})


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [RULES, ASKED, SAID]},
        {"system": "s", "messages": [ASKED, SAID]},
        {"system": "s", "conversations": [{"from": "human", "value": "a"}, SAID]},
        {"conversations": [{"from": "system", "value": "s"}, ASKED, SAID]},
        {"system": "s", "data": ["a", "b"]},
        {"system": "s", "turns": [ASKED, SAID]},
        {"system": "s", "prompt": [ASKED], "completion": "b"},
        {"system": "s", "instruction": "a", "output": "b"},
    ],
)
def test_a_system_message(row: dict[str, Any]) -> None:
    """Among the turns, or beside them in any spelling."""
    assert conversation(row) == Conversation((RULES, ASKED), whole=(RULES, ASKED, SAID))


def test_a_system_message_beside_texts() -> None:
    """A user's turns come after it; a prompt without roles can't have it, and a text needs none."""
    rules = {"system": "s"}
    assert conversation({"turns": ["a", "x"], **rules}) == Conversation((RULES, ASKED), ("x",))
    assert conversation({"text": "b", **rules}) == conversation({"text": "b"})
    assert conversation({"messages": [], **rules}) == Conversation(())
    with pytest.raises(ForetokenError, match='"system" beside "prompt", a text as it is; give'):
        conversation({"prompt": "a", **rules})
    with pytest.raises(ForetokenError, match="A turn is 3; it must be a text"):
        conversation({"turns": ["a"], "system": 3})


def test_what_was_said_before() -> None:
    """The pairs that Alpaca's rows may have beside the last one."""
    row = {"instruction": "a", "output": "b"}
    longer = Conversation((ASKED, SAID, ASKED), whole=(ASKED, SAID, ASKED, SAID))
    assert conversation({**row, "history": [["a", "b"]]}) == longer
    assert conversation({**row, "history": None}) == conversation(row)
    for wrong in ([["a"]], ["ab"], [{"role": "user", "content": "a"}], "ab", {"a": "b"}):
        with pytest.raises(ForetokenError, match=r'"history" is .*; it must be a list of pairs'):
            conversation({**row, "history": wrong})


def test_tools_turns() -> None:
    """What a tool says is answered too; keys beside role and content are kept."""
    named = {**RESULT, "name": "f"}
    found = conversation({"messages": [ASKED, CALL, named, SAID]})
    assert found == Conversation((ASKED, CALL, named), whole=(ASKED, CALL, named, SAID))
    assert conversation({"messages": [ASKED, SAID], "tools": []}).tools == ()


@pytest.mark.parametrize("many", [False, True])
def test_calls_of_sharegpt(many: bool) -> None:
    """Are calls, which the template writes, and not a text; what is no call stays one."""
    call = {"name": "f", "arguments": {"n": 1}}
    value = json.dumps([call, call] if many else call)
    turns = [{"from": "human", "value": "a"}, {"from": "function_call", "value": value}]
    row = {"conversations": [*turns, {"from": "observation", "value": "9"}]}
    [_, called, result] = conversation(row).messages
    wanted = [{"type": "function", "function": call}] * (2 if many else 1)
    assert called == {"role": "assistant", "content": None, "tool_calls": wanted}
    assert result == RESULT
    others = (call | {"arguments": "Paris"}, call | {"arguments": [1]}, call | {"parameters": {}})
    for text in ("f(1)", "7", '{"n": 1}', "[]", *map(json.dumps, others)):
        turns[1]["value"] = text
        assert conversation(row | {"conversations": turns}).whole[1] == SAID | {"content": text}


@pytest.mark.parametrize("tools", [[{"type": "function"}], '[{"type": "function"}]'])
def test_declared_tools(tools: Any) -> None:
    """A list, or one as JSON text; beside raw texts there is nothing that reads them."""
    found = conversation({"messages": [ASKED, SAID], "tools": tools})
    assert found.tools == ({"type": "function"},) and found.whole == (ASKED, SAID)
    with pytest.raises(ForetokenError, match="no chat template reads it"):
        conversation({"prompt": "a", "tools": tools})
    for wrong in ({"f": 1}, [1], '{"f": 1}'):
        with pytest.raises(ForetokenError, match=r'"tools" is .*; it must be a list'):
            conversation({"messages": [ASKED, SAID], "tools": wrong})


@pytest.mark.parametrize("given", [{"n": [1]}, '{"n": [1]}'])
def test_arguments_of_calls(given: Any) -> None:
    """Are values, also where a file has them as JSON, with or without "function" around them."""
    call = {"name": "f", "arguments": given}
    for calls in ([{"function": call}], [call]):
        turn = {"role": "assistant", "content": None, "tool_calls": calls}
        [read] = conversation({"messages": [ASKED, turn]}).whole[1]["tool_calls"]
        assert read.get("function", read) == {"name": "f", "arguments": {"n": [1]}}
    cut = {**turn, "tool_calls": [{"name": "f", "arguments": "{"}]}
    [read] = conversation({"messages": [ASKED, cut]}).whole[1]["tool_calls"]
    assert read["arguments"] == {}  # as when a server is asked
    wrong = {**turn, "tool_calls": [{"name": "f", "arguments": 3}]}
    with pytest.raises(ForetokenError, match="tool_calls of message 1 must be a list"):
        conversation({"messages": [ASKED, wrong]})


def test_prompts_and_texts() -> None:
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
    assert list(map(conversation, rows)) == [
        Conversation((ASKED,), ("x", "y")),
        Conversation((ASKED,), raw=True),
        Conversation((ASKED,), whole=(ASKED, SAID), raw=True),
        Conversation((), whole=(SAID,), raw=True),
        Conversation((longer,), whole=(longer, SAID)),
        Conversation((ASKED,), whole=(ASKED, SAID)),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "b"}, 'it has none of "turns", "messages", "conversations", "data"'),
        (["a"], "it has none of"),
        ({"conversations": [{"from": "nobody", "value": "x"}]}, "from 'nobody'; it must be from"),
        ({"conversations": [{"from": "gpt", "value": 3}]}, "A turn is 3; it must be a text"),
        ({"messages": [{"role": "user", "content": 3}]}, "The content of message 0 is 3"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "of type 'image'"),
        ({"data": "a"}, "must be a list of texts"),
        ({"turns": []}, "the turns are []; they must be a list"),
        ({"turns": "abc"}, "the turns are 'abc'"),
        ({"messages": 3}, "A conversation is 3"),
        ({"prompt": 7}, "A turn is 7"),
    ],
)
def test_what_is_no_conversation(row: Any, said: str) -> None:
    """The message names what is wrong."""
    with pytest.raises(ForetokenError) as error:
        conversation(row)
    assert said in str(error.value)


NAMED = {"name": "f", "arguments": {"n": 1}}


@pytest.mark.parametrize("arguments", [{"n": 1}, '{"n": 1}'])
@pytest.mark.parametrize("key", ["messages", "conversations", "turns"])
def test_openais_older_form(key: str, arguments: Any) -> None:
    """A call, a function's answer and the functions have their newer names."""
    call = {"name": "f", "arguments": arguments}
    called = {"role": "assistant", "content": None, "function_call": call}
    given = {"role": "function", "name": "f", "content": "9"}
    newer = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": NAMED}],
    }
    whole = (ASKED, newer, {**given, "role": "tool"}, SAID)
    found = conversation({key: [ASKED, called, given, {**SAID, "function_call": None}]})
    assert found == Conversation(whole[:3], whole=whole)


def test_functions_by_their_older_name() -> None:
    """Beside messages, a list or one as JSON text; tools are taken where both are there."""
    function = {"name": "f", "parameters": {}}
    row = {"messages": [ASKED, SAID]}
    for given in ([function], json.dumps([function])):
        found = conversation({**row, "functions": given})
        assert found.tools == ({"type": "function", "function": function},)
    for none in ([], None, ""):
        assert conversation({**row, "functions": none}) == conversation(row)
    both = {**row, "functions": [function], "tools": [{"type": "own"}]}
    assert conversation(both).tools == ({"type": "own"},)
    for wrong in ("f", {"f": 1}, ["f"]):
        with pytest.raises(ForetokenError, match=r'"functions" is .*; it must be a list'):
            conversation({**row, "functions": wrong})


def test_a_number_of_turns() -> None:
    """Beside another spelling it is no turns."""
    for row in ({"messages": [ASKED, SAID]}, {"prompt": "a"}, {"data": ["a", "b"]}):
        assert conversation({**row, "turns": 1}) == conversation(row)
    with pytest.raises(ForetokenError, match="the turns are 1; they must be a list"):
        conversation({"turns": 1})
