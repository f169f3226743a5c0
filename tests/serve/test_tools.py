"""Calls of functions, fed piece by piece and asked for through the server."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from openai import BadRequestError, OpenAI

from foretoken import LLM, ForetokenError
from foretoken.serve.streaming import event
from foretoken.serve.tools import (
    FORMATS,
    Call,
    Format,
    Growing,
    Told,
    format_named,
    message,
    opened,
)
from foretoken.testing import ByteTokenizer, TableModel
from served import Served, serving

WEATHER = '{"city": "Sankt \\"P\\" <x>", "days": [1, 2], "metric": true}'
CALL = f'{{"name": "weather", "arguments": {WEATHER}}}'
TIME = '{"arguments": {"zone": "</tool_call>"}, "name": "time"}'
OFFERED = {"weather", "time", "f"}
ASKED = [Call("weather", WEATHER), Call("time", '{"zone": "</tool_call>"}')]

TEXTS: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", ASKED[:1]),
    (
        "hermes",
        f"I look.\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{TIME}\n</tool_call>",
        "I look.",
        ASKED,
    ),
    ("hermes", f"<tool_call>{CALL}</tool_call> Done. ", "Done. ", ASKED[:1]),
    ("hermes", f"<tool_call>{CALL} <tool_call>{TIME}", "", ASKED),
    ("hermes", "Is 1 < 2, or <tool>? <tool_call", "Is 1 < 2, or <tool>? <tool_call", []),
    ("hermes", "<tool_call>no</tool_call> \n", "<tool_call>no</tool_call> \n", []),
    ("hermes", '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "f"}', '<tool_call>{"name": "f"}', []),
    ("hermes", 'I <tool_call>{"name": "f', 'I <tool_call>{"name": "f', []),
    (
        "hermes",
        '<tool_call>{"name": 3, "arguments": {}}',
        '<tool_call>{"name": 3, "arguments": {}}',
        [],
    ),
    (
        "hermes",
        f"<tool_call>[</tool_call> <tool_call>{CALL}</tool_call>",
        "<tool_call>[</tool_call>",
        ASKED[:1],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": {"b": "c',
        "",
        [Call("f", '{"a": {"b": "c')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> So',
        "So",
        [Call("f", '{"a": 1')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> So',
        "So",
        [Call("f", '{"a": 1}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}, "arguments": {"a": 1}}</tool_call>',
        "",
        [Call("f", "{}")],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": null }</tool_call>', "", [Call("f", "null")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}, "name": "time"}</tool_call>',
        "",
        [Call("f", "{}")],
    ),
    ("llama3_json", CALL.replace("arguments", "parameters"), "", ASKED[:1]),
    ("llama3_json", f" <|python_tag|>{CALL}", f" <|python_tag|>{CALL}", []),
    ("llama3_json", f"<|python_tag|>{CALL}; {TIME}\n", "", ASKED),
    ("llama3_json", f"{CALL} and so", "and so", ASKED[:1]),
    ("llama3_json", f"It is {CALL}", f"It is {CALL}", []),
    ("llama3_json", '{"name": "Bob", "age": 3} ', '{"name": "Bob", "age": 3} ', []),
    ("llama3_json", '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', []),
    (
        "llama3_json",
        f'{CALL}; {{"name": "no", "parameters": 5}}',
        '{"name": "no", "parameters": 5}',
        ASKED[:1],
    ),
    ("llama3_json", '<|python_tag|>{"name": "no", "parameters": {}}', "", [Call("no", "{}")]),
    ("hermes", '<tool_call>{"name": "no", "arguments": {}}</tool_call>', "", [Call("no", "{}")]),
    ("llama3_json", "  \n", "  \n", []),
    ("llama3_json", "<|python", "<|python", []),
]
CASES = pytest.mark.parametrize(("name", "text", "content", "calls"), TEXTS)


def made(name: str) -> Format:
    return format_named(name, OFFERED)


def put_together(deltas: list[dict[str, Any]]) -> tuple[str, list[Call]]:
    """What a client makes of deltas: each call's name comes first, and once."""
    content = ""
    names: list[str] = []
    arguments: list[str] = []
    for delta in deltas:
        content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if call["index"] == len(names):
                assert call["id"].startswith("call_") and call["type"] == "function"
                names.append(function["name"])
                arguments.append("")
            else:
                assert set(call) == {"index", "function"} and set(function) == {"arguments"}
            arguments[call["index"]] += function["arguments"]
    return content, [Call(*pair) for pair in zip(names, arguments, strict=True)]


@CASES
def test_whole(name: str, text: str, content: str, calls: list[Call]) -> None:
    assert made(name)(Growing(text), True) == (content, calls)


@CASES
def test_every_split(name: str, text: str, content: str, calls: list[Call]) -> None:
    for first in range(len(text) + 1):
        told = Told(made(name))
        deltas = told.more(text[:first], False) + told.more(text[first:], True)
        assert put_together(deltas) == (content, calls), first
        assert told.called == bool(calls)


@CASES
@pytest.mark.parametrize("longest", [1, 2, 9])
def test_pieces(name: str, text: str, content: str, calls: list[Call], longest: int) -> None:
    chance, told, deltas, place = random.Random(longest), Told(made(name)), [], 0
    while place < len(text):
        piece = text[place : place + chance.randint(1, longest)]
        place += len(piece)
        deltas += told.more(piece, False)
    assert put_together(deltas + told.more("", True)) == (content, calls)


def test_any_text_in_parts_is_the_whole() -> None:
    tags = ["<tool_call>", "</tool_call>", "<|python_tag|>", '"name": "f"', '"arguments": ']
    parts = [*tags, CALL, TIME, "name", "1.5", *'{}[]"\\:, <x;']
    chance = random.Random(0)
    for _ in range(1500):
        text = "".join(chance.choices(parts, k=chance.randint(1, 8)))
        for format_ in map(made, FORMATS):
            told = Told(format_)
            deltas = [delta for letter in text for delta in told.more(letter, False)]
            whole = format_(Growing(text), True)
            assert put_together(deltas + told.more("", True)) == whole, text


ROWS = '{"rows": [' + '{"a": 1, "b": "x"}, ' * 500
LONG = {
    "a list": ROWS,
    "fields": '{"a": 1}, ' + '"b": 1, ' * 4000,
    "calls": ROWS + f']}}</tool_call><tool_call>{{"name": "f", "arguments": {ROWS}' * 8,
}


@pytest.mark.parametrize("kind", LONG)
def test_a_part_takes_no_longer_the_more_was_written(kind: str) -> None:
    """What was read of a call isn't read again: the lines that are run for a part are counted."""
    told = Told(made("hermes"))
    told.more('<tool_call>{"name": "f", "arguments": ' + LONG[kind], False)
    run = 0

    def count(frame: Any, what: str, _: Any) -> Any:
        nonlocal run
        run += what == "line" and frame.f_code.co_filename.endswith("tools.py")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        told.more('{"', False)
    finally:
        sys.settrace(before)
    assert 0 < run < 600


def test_a_string_is_read_once() -> None:
    """Its parts are looked for from where it was read to, be it the middle of an escape."""
    text, places = Growing('"' + "a" * 5000 + "\\"), []
    assert text.value_end(0) is None
    text.text = '"' + "!" * 5000 + "\\"  # where it begins apart, what was read isn't looked at
    for part in ('"', "b", '"', " "):
        text.add(part)
        places.append(text.value_end(0))
    assert places == [None, None, 5005, 5005]


@pytest.mark.parametrize("field", ["arguments", "parameters"])
def test_arguments_are_told_as_they_come(field: str) -> None:
    told = Told(made("hermes"))
    told.more('<tool_call>{"name": "f", ', False)
    told.more(f'"{field}": {{"a', False)
    assert told.more('bc": "d', False) == [
        {"tool_calls": [{"index": 0, "function": {"arguments": 'bc": "d'}}]}
    ]


def test_an_object_that_is_no_call_is_told_as_it_comes() -> None:
    told = Told(made("llama3_json"))
    assert told.more('{"a": 1} and', False) == [{"content": '{"a": 1} and'}]
    assert told.more(" so on", False) == [{"content": " so on"}]


def test_one_call_only() -> None:
    text = f"<tool_call>{CALL}</tool_call><tool_call>{TIME}</tool_call>"
    whole = message(made("hermes"), text, True)
    assert len(whole["tool_calls"]) == 1 and whole["content"] is None
    assert put_together(Told(made("hermes"), True).more(text, True)) == ("", ASKED[:1])


def test_a_name_that_cannot_be_sent() -> None:
    """Half a surrogate pair is no text, so what has it is no call."""
    text = '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'
    told = message(made("hermes"), text, False)
    assert event(told).encode() and told == {"content": text}


def test_unknown_parser() -> None:
    with pytest.raises(ForetokenError, match="hermes"):
        format_named("herms", OFFERED)


TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
SAID: Any = [{"role": "user", "content": "?"}]
WRITES = f"I look. <tool_call>{CALL}</tool_call>"
VOCAB, END = 97, 96


class Templated(ByteTokenizer):
    """A tokenizer whose template reads tools; it keeps what it was given."""

    chat_template = "{{ tools }}{{ tool_calls }}"
    given: dict[str, Any]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        self.given = {"messages": conversation, **options}
        return "?"


def script(tokenizer: ByteTokenizer, writes: str = WRITES) -> LLM:
    """A model that answers this to a prompt of one token."""
    ids = [*tokenizer(writes)["input_ids"], END]
    table = torch.zeros(len(ids), VOCAB, VOCAB, dtype=torch.float64)
    table[torch.arange(len(ids)), :, torch.tensor(ids)] = 50
    model = TableModel(table, window=1, max_length=256)
    model.eos_ids = frozenset({END})
    return LLM(model, tokenizer=tokenizer, max_num_seqs=2)


@pytest.fixture(scope="module")
def called() -> Iterator[tuple[Served, Templated]]:
    tokenizer = Templated(VOCAB)
    with serving(script(tokenizer), tool_call_parser="hermes") as server:
        yield server, tokenizer


@pytest.fixture
def calling(called: tuple[Served, Templated]) -> Iterator[Any]:
    with OpenAI(base_url=f"{called[0].url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_a_call(calling: Any, called: Any) -> None:
    answer = calling.chat.completions.create(model="toy", messages=SAID, tools=[TOOL])
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ASKED[0]
    assert called[1].given["tools"] == [TOOL]


def test_a_tool_without_a_type_is_a_function(calling: Any, called: Any) -> None:
    bare = {"function": TOOL["function"]}
    calling.chat.completions.create(model="toy", messages=SAID, tools=[bare], max_tokens=1)
    assert called[1].given["tools"] == [TOOL]


def test_a_streamed_call(calling: Any) -> None:
    chunks = list(
        calling.chat.completions.create(model="toy", messages=SAID, tools=[TOOL], stream=True)
    )
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks]
    assert put_together(deltas) == ("I look.", ASKED[:1])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}


def test_a_call_that_is_cut_off_says_so(calling: Any) -> None:
    options: Any = {"model": "toy", "messages": SAID, "tools": [TOOL], "max_tokens": 70}
    [choice] = calling.chat.completions.create(**options).choices
    assert choice.finish_reason == "length" and choice.message.tool_calls
    chunks = list(calling.chat.completions.create(**options, stream=True))
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks]
    [call] = choice.message.tool_calls
    assert put_together(deltas)[1] == [Call(call.function.name, call.function.arguments)]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_each_token_is_told_once(calling: Any) -> None:
    chunks = calling.chat.completions.create(
        model="toy", messages=SAID, tools=[TOOL], stream=True, logprobs=True, n=2
    )
    told = {0: "", 1: ""}
    deltas: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for choice in (chunk.choices[0] for chunk in chunks):
        deltas[choice.index].append(choice.delta.model_dump(exclude_unset=True))
        for entry in choice.logprobs.content if choice.logprobs else ():
            told[choice.index] += entry.token
    assert [text.removesuffix("<eos>") for text in told.values()] == [WRITES] * 2
    assert [put_together(each) for each in deltas.values()] == [("I look.", ASKED[:1])] * 2


@pytest.mark.parametrize("several", [True, False])
def test_more_calls_than_are_asked_for(several: bool) -> None:
    """Are left out where one is asked for, of a whole answer and of a stream."""
    writes = f"{WRITES}<tool_call>{TIME}</tool_call>"
    clock: Any = {**TOOL, "function": {**TOOL["function"], "name": "time"}}
    asked: dict[str, Any] = {"model": "toy", "messages": SAID, "tools": [TOOL, clock]}
    asked["parallel_tool_calls"] = several
    with (
        serving(script(Templated(VOCAB), writes), tool_call_parser="hermes") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made,
    ):
        [choice] = made.chat.completions.create(**asked).choices
        chunks = list(made.chat.completions.create(**asked, stream=True))
    expected = ASKED if several else ASKED[:1]
    calls = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
    assert [Call(call.name, call.arguments) for call in calls] == expected
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks]
    assert put_together(deltas)[1] == expected


@pytest.mark.parametrize("deep", [900, 100_000])
def test_a_name_that_is_a_deep_list(deep: int) -> None:
    """As a model that repeats itself writes it: no call."""
    text = '<tool_call>{"name": ' + "[" * deep + "</tool_call>"
    assert message(made("hermes"), text, False)["content"] == text


def test_none_is_a_text(calling: Any, called: Any) -> None:
    [choice] = calling.chat.completions.create(
        model="toy", messages=SAID, tools=[TOOL], tool_choice="none"
    ).choices
    assert choice.message.content == WRITES and choice.message.tool_calls is None
    assert choice.finish_reason == "stop" and "tools" not in called[1].given


def test_calls_and_results_go_back_in(calling: Any, called: Any) -> None:
    [choice] = calling.chat.completions.create(model="toy", messages=SAID, tools=[TOOL]).choices
    turn = choice.message.model_dump(exclude_unset=True)
    result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "rain"}
    calling.chat.completions.create(model="toy", messages=[*SAID, turn, result], tools=[TOOL])
    given = called[1].given["messages"]
    assert given[1]["tool_calls"][0]["function"]["arguments"] == json.loads(WEATHER)
    assert given[2] == result


def test_every_call_that_is_told_goes_back_in(calling: Any, called: Any) -> None:
    """One whose arguments are no object, or were cut off, would end the conversation else."""
    made = {call for *_, calls in TEXTS for call in calls}
    odd = ["[", "[" * 5000, "[1]", "3", '"a"', "", '{"a": NaN,']
    for call in [*made, *(Call("f", arguments) for arguments in odd)]:
        turn = {"role": "assistant", "content": None, "tool_calls": [opened(*call)]}
        messages = [*SAID, turn, *SAID]
        calling.chat.completions.create(model="toy", messages=messages, tools=[TOOL], max_tokens=1)
        [told] = called[1].given["messages"][1]["tool_calls"]
        try:
            known = json.loads(call.arguments)
        except (ValueError, RecursionError):
            known = {}
        assert told["function"]["arguments"] == (known if isinstance(known, dict) else {})


BAD_CALLS = [
    {"role": "assistant", "content": None, "tool_calls": calls}
    for calls in (
        "x",
        [1],
        [{"function": {"name": "f", "arguments": 1}}],
        [{"function": {"name": "f", "arguments": [1]}}],
        [{"function": {"arguments": "["}}],
    )
]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"tools": [TOOL], "tool_choice": 3}, "auto"),
        ({"tools": [{"type": "function"}]}, "tools.0.function is missing"),
        *(({"messages": [*SAID, turn]}, "tool_calls of message 1") for turn in BAD_CALLS),
    ],
    ids=str,
)
def test_refusals(calling: Any, body: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        calling.chat.completions.create(**{"model": "toy", "messages": SAID} | body)


def test_a_server_without_a_parser(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="--tool-call-parser"):
        client.chat.completions.create(model="toy", messages=SAID, tools=[TOOL])
    client.chat.completions.create(
        model="toy", messages=SAID, tools=[TOOL], tool_choice="none", max_tokens=2
    )


def test_a_template_without_tools() -> None:
    tokenizer = ByteTokenizer(VOCAB)
    with (
        serving(script(tokenizer), tool_call_parser="hermes") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made,
        pytest.raises(BadRequestError, match="doesn't read tools"),
    ):
        made.chat.completions.create(model="toy", messages=SAID, tools=[TOOL])
