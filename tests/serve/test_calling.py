"""Calls that must be made, or are strict: every answer is what its schemas allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from foretoken import LLM, StructuredOutputsParams
from foretoken.grammar.guidance import Guidance
from foretoken.serve.calling import calls_grammar, with_calls
from foretoken.serve.chat import _with_choice
from foretoken.serve.errors import ApiError
from foretoken.serve.schema import ChatBody, Function
from foretoken.serve.settings import ServerSettings
from foretoken.serve.tools import FORMATS
from grammar_cases import EOS
from json_tokenizer import ids, pair, tokenizer
from served import serving

pytest.importorskip("llguidance")


def tool(name: str, properties: dict[str, Any], **more: Any) -> Any:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


PAINT = tool("paint", {"colour": {"enum": ["red", "green"]}, "times": {"enum": [1, 2]}})
AGE = tool("age", {"years": {"type": "integer", "minimum": 10, "maximum": 99}})
STRICT = [
    tool(t["function"]["name"], t["function"]["parameters"]["properties"], strict=True)
    for t in (PAINT, AGE)
]
WRONG = tool("f", {"a": {"type": "colour"}}, strict=True)
ASKED: dict[str, Any] = {
    "model": "toy",
    "messages": [{"role": "user", "content": "?"}],
    "tools": [PAINT, AGE],
    "temperature": 1.0,
    "max_tokens": 150,
}


def fits(name: str, arguments: str) -> bool:
    given = json.loads(arguments)
    if name == "age":
        return list(given) == ["years"] and 10 <= given["years"] <= 99
    return set(given) == {"colour", "times"} and given["colour"] in ("red", "green")


@pytest.fixture(scope="module", params=[*FORMATS])
def client(request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    with asking(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def hermes() -> Iterator[OpenAI]:
    with asking("hermes") as made:
        yield made


@contextmanager
def asking(parser: str) -> Iterator[OpenAI]:
    own = deepcopy(tokenizer())
    own.chat_template = "{% if tools %}{{ messages[0].content }}{% endif %}"
    config = {"method": "grammar+suffix"}
    llm = LLM(pair().target, tokenizer=own, speculative_config=config)
    with (
        serving(llm, tool_call_parser=parser) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made,
    ):
        yield made


def calls_of(choice: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]


def streamed(client: Any, **asked: Any) -> tuple[str, list[tuple[str, str]], str, int]:
    """Text, calls, reason, and in how many parts the first call's arguments came."""
    text, names, arguments, reason, parts = "", list[str](), list[str](), "", 0
    for chunk in client.chat.completions.create(**asked, stream=True):
        [choice] = chunk.choices
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            if call.index == len(names):
                names.append(call.function.name)
                arguments.append("")
            arguments[call.index] += call.function.arguments or ""
            parts += call.index == 0 and bool(call.function.arguments)
        reason = choice.finish_reason or reason
    return text, list(zip(names, arguments, strict=True)), reason, parts


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_valid_and_their_deltas_add_up(client: Any, seed: int) -> None:
    asked = ASKED | {"tool_choice": "required", "seed": seed}
    [choice] = client.chat.completions.create(**asked).choices
    made = calls_of(choice)
    whole = made if choice.finish_reason == "tool_calls" else made[:-1]
    assert made and all(fits(*call) for call in whole) and not choice.message.content
    text, told, reason, parts = streamed(client, **asked)
    assert (text, told, reason) == ("", made, choice.finish_reason) and parts > 1


def test_several_calls_unless_one_is_asked_for(client: Any) -> None:
    asked = ASKED | {"tool_choice": "required", "seed": 1, "n": 6}
    counts = [len(calls_of(c)) for c in client.chat.completions.create(**asked).choices]
    assert max(counts) > 1
    one = client.chat.completions.create(**asked, parallel_tool_calls=False).choices
    assert {len(calls_of(choice)) for choice in one} == {1}
    assert {choice.finish_reason for choice in one} == {"tool_calls"}


@pytest.mark.parametrize("name", ["paint", "age"])
def test_a_named_function_is_the_one_that_is_called(client: Any, name: str) -> None:
    asked = ASKED | {"tool_choice": {"type": "function", "function": {"name": name}}, "seed": 4}
    [choice] = client.chat.completions.create(**asked).choices
    [(called, arguments)] = calls_of(choice)
    assert called == name and fits(name, arguments) and choice.finish_reason == "stop"
    assert streamed(client, **asked)[1:3] == ([(called, arguments)], "stop")


def with_tags() -> Any:
    """A tokenizer that has tags as tokens, as Qwen's does."""
    own = deepcopy(tokenizer())
    own.add_tokens(["<tool_call>", "</tool_call>", "<think>", "<|python_tag|>"])
    return own


def matches(
    format_: str,
    must: bool,
    several: bool,
    text: str,
    tools: Any = STRICT,
    own: Any = None,
    answer: Any = None,
) -> bool:
    """Whether the grammar allows a whole text."""
    own = own or tokenizer()
    functions = [Function(**t["function"]) for t in tools]
    grammar = calls_grammar(functions, format_, must, several, own.get_added_vocab(), answer)
    return allows(grammar, text, own)


def allows(grammar: str, text: str, own: Any) -> bool:
    matcher = Guidance(own, len(own), EOS).compile(StructuredOutputsParams(grammar=grammar))()
    given = own(text, add_special_tokens=False)["input_ids"]
    return all(matcher.accept(token) for token in given) and matcher.complete


GOOD = '{"name": "age", "arguments": {"years": 12}}'
BAD = '{"name": "age", "arguments": {"years": 5}}'
H = "<tool_call>\n{}\n</tool_call>".format
HERMES = [
    (False, True, "a text", True),
    (False, True, "", True),
    (False, True, f"I look.\n{H(GOOD)}", True),
    (False, True, f"{H(GOOD)}\n{H(GOOD)} so", True),
    (False, True, f"I {H(BAD)}", False),
    (False, True, H(GOOD.replace("age", "aged")), False),
    (False, True, f"I <tool_call>{GOOD}</tool_call>", False),
    (False, True, "a < b <tool_cal", True),
    (False, True, "I <tool_call>\n", False),
    (False, False, f"I {H(GOOD)}", True),
    (False, False, f"{H(GOOD)}\n{H(GOOD)}", False),
    (True, True, "a text", False),
    (True, True, f"{H(GOOD)}\n{H(GOOD)}", True),
    (True, False, f"{H(GOOD)}\n{H(GOOD)}", False),
]
LLAMA = [
    (False, True, " a {text}", True),
    (False, True, GOOD, True),
    (False, True, f"{GOOD}; {GOOD}", True),
    (False, False, f"{GOOD}; {GOOD}", False),
    (False, True, BAD, False),
    (False, True, f" {BAD}", False),
    (False, True, f"<|python_tag|>{BAD}", False),
    (True, True, "a text", False),
]
CASES = [("hermes", *c) for c in HERMES] + [
    ("llama3_json", m, s, t.replace("arguments", "parameters"), fit) for m, s, t, fit in LLAMA
]


@pytest.mark.parametrize(("format_", "must", "several", "text", "fit"), CASES)
def test_what_an_answer_may_be(
    format_: str, must: bool, several: bool, text: str, fit: bool
) -> None:
    assert matches(format_, must, several, text) is fit
    assert matches(format_, must, several, text, own=with_tags()) is fit


def test_added_tokens_stand_in_a_text() -> None:
    """Where tags are tokens of their own, calls are written with them, and never spelled out."""
    own = with_tags()
    for text in (f"<think>so</think>a {H(GOOD)} b<think>", "<think>", f"<think>{H(GOOD)}"):
        assert matches("hermes", False, True, text, own=own), text
    assert not matches("hermes", False, True, f"<think>{H(BAD)}", own=own)
    spelled = [token for letter in H(BAD) for token in ids(letter)]
    functions = [Function(**t["function"]) for t in STRICT]
    for must in (False, True):
        grammar = calls_grammar(functions, "hermes", must, True, own.get_added_vocab())
        start = Guidance(own, len(own), EOS).compile(StructuredOutputsParams(grammar=grammar))
        matcher = start()
        assert not all(matcher.accept(token) for token in spelled)


ANSWER = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/n"}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"n": {"enum": ["age", "Ada"]}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER}}


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        ('{"name":"Ada"}', True),
        ('{"name":"x"}', False),
        ("a text", False),
        (H(GOOD), True),
        (f"{H(GOOD)}\n{H(GOOD)}", True),
        (H(BAD), False),
        (f'{{"name":"Ada"}}{H(GOOD)}', False),
    ],
)
def test_calls_beside_a_format_of_the_answer(text: str, fit: bool) -> None:
    """It is calls, or JSON of that schema."""
    for own in (tokenizer(), with_tags()):
        assert matches("hermes", False, True, text, own=own, answer=ANSWER) is fit


@pytest.mark.parametrize("tools", [[PAINT, AGE], STRICT], ids=["loose", "strict"])
@pytest.mark.parametrize("format_", [FORMAT, {"type": "json_object"}], ids=["schema", "object"])
def test_a_format_leaves_a_place_for_calls(tools: Any, format_: Any) -> None:
    """Where calls have tags; JSON without one could be either, so both aren't had at once."""
    body = ChatBody(
        messages=[{"role": "user", "content": "?"}], tools=tools, response_format=format_
    )
    settings = ServerSettings(names=("toy",), tool_call_parser="hermes")
    made = _with_choice(body, settings, tokenizer())
    assert made.response_format is None and made.structured_outputs is not None
    assert "%json" in made.structured_outputs["grammar"]
    settings = ServerSettings(names=("toy",), tool_call_parser="llama3_json")
    with pytest.raises(ApiError, match="response_format and calls can't be had at once"):
        _with_choice(body, settings, tokenizer())


def test_an_answer_beside_calls_is_in_its_format(hermes: Any) -> None:
    wanted: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1]}}}
    closed = wanted | {"required": ["a"], "additionalProperties": False}
    format_ = {"type": "json_object", "schema": closed}
    for seed in range(3):
        asked = ASKED | {"seed": seed, "response_format": format_}
        [choice] = hermes.chat.completions.create(**asked).choices
        text = choice.message.content
        assert calls_of(choice) or text == '{"a":1}'
        assert streamed(hermes, **asked)[:2] == (text or "", calls_of(choice))
    wrong = {"type": "json_object", "schema": {"type": "colour"}}
    with pytest.raises(BadRequestError, match="schema of response_format can't be used"):
        hermes.chat.completions.create(**ASKED, extra_body={"response_format": wrong})


def test_functions_that_are_not_strict_take_any_object() -> None:
    """Beside one that is; where a call is required, schemas always hold."""
    loose = [PAINT, STRICT[1]]
    text = H('{"name": "paint", "arguments": {"x": [1]}}')
    assert matches("hermes", False, True, text, loose)
    assert not matches("hermes", True, True, text, loose)
    bare = [{"function": {"name": "now", "strict": True}}]
    assert matches("hermes", True, True, H('{"name": "now", "arguments": {}}'), bare)
    assert not matches("hermes", True, True, H('{"name": "now", "arguments": {"a": 1}}'), bare)
    named = [{"function": {"name": "größe"}}]
    assert matches("hermes", True, True, H('{"name": "größe", "arguments": {}}'), named)


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "age"}}},
    ],
    ids=["one", "named"],
)
def test_no_second_call_is_written_where_one_is_asked_for(more: dict[str, Any]) -> None:
    """It would be left out of the answer, and paid for."""
    body = ChatBody.model_validate({"messages": ASKED["messages"], "tools": [AGE], **more})
    made = with_calls(body, "hermes", tokenizer()).structured_outputs
    assert made is not None and allows(made["grammar"], H(GOOD), tokenizer())
    assert not allows(made["grammar"], f"{H(GOOD)}\n{H(GOOD)}", tokenizer())


def test_strict_functions_leave_a_text_free(client: Any) -> None:
    """Under "auto", with every call in it valid; a stream tells the same."""
    asked = ASKED | {"seed": 2, "tools": STRICT, "max_tokens": 40}
    [choice] = client.chat.completions.create(**asked).choices
    text, told, reason, _ = streamed(client, **asked)
    assert (text, told) == (choice.message.content or "", calls_of(choice))
    assert reason == choice.finish_reason


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "ag"}}}, "Did you mean 'age'"),
        ({"tool_choice": {"function": 3}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "function": {"name": "age"}}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "no tools"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format and calls can't be had at once",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "a"}}},
            "structured_outputs and calls can't be had at once",
        ),
        ({"tools": [AGE, WRONG]}, "parameters of function 'f' can't be used: Invalid type: colour"),
        ({"tools": [tool("f", {"a": 5})], "tool_choice": "required"}, "function 'f' can't be used"),
    ],
    ids=str,
)
def test_refusals(client: Any, more: dict[str, Any], says: str) -> None:
    asked: Any = ASKED | {"max_tokens": 5} | more
    with pytest.raises(BadRequestError, match=says):
        client.chat.completions.create(**asked)
    with pytest.raises(BadRequestError, match=says):
        list(client.chat.completions.create(**asked, stream=True))


def test_calls_between_special_tokens() -> None:
    """Which are left out of texts, and would take the call with them."""
    tags = ["<tool_call>", "</tool_call>"]
    named, own = deepcopy(tokenizer()), deepcopy(tokenizer())
    named.add_special_tokens({"additional_special_tokens": tags})
    own.add_tokens(tags, special_tokens=True)  # special without a name, as many files have them
    plain = deepcopy(tokenizer())
    plain.add_tokens(tags)
    body = ChatBody(messages=[{"role": "user", "content": "?"}], tools=[PAINT])  # type: ignore[list-item]
    settings = ServerSettings(names=("toy",), tool_call_parser="hermes")
    for hides, made in ((True, named), (True, own), (False, plain), (False, tokenizer())):
        shown = made.decode(made(tags[0])["input_ids"], skip_special_tokens=True)
        assert (tags[0] not in shown) is hides
        assert _with_choice(body, settings, made).skip_special_tokens is not hides
    bare = body.model_copy(update={"tools": []})
    assert _with_choice(bare, settings, own).skip_special_tokens
