"""Which functions an answer calls, as a grammar: for a `tool_choice` that makes the model call, for
functions whose arguments are to be strict, and for an answer that is calls or JSON.

Arguments are written as chat templates write them, by `json.dumps`: a space after commas and
colons, no other white space. The grammars are Lark's in llguidance's dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.errors import shown, unknown
from foretoken.grammar.guidance import wrong_schema
from foretoken.serve.errors import ApiError
from foretoken.serve.guidance import constraint
from foretoken.serve.schema import ChatBody, Function

_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_COMPACT = {"whitespace_flexible": False}
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_SYNTAX = {
    "hermes": ("<tool_call>", "\n", "arguments", "\n", "</tool_call>", "\n"),
    "llama3_json": ("", "", "parameters", "", "", "; "),
}
"""Format -> a call's tag and what follows it, the name of its arguments, what comes before its
closing tag, that tag, and what parts two calls."""
_BARRED = {"hermes": "<tool_call>", "llama3_json": "<|python_tag|>"}
"""Format -> the tag that no text may have in which nothing is called."""


def named(choice: Any) -> str | None:
    """The function that a `tool_choice` names; None for a choice that is a word. Raises `ApiError`
    for another one."""
    if choice in (None, "auto", "none", "required"):
        return None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(name, str) and choice.get("type") == "function":
        return name
    raise ApiError(
        400,
        f'tool_choice is {shown(choice)}; give "auto", "none", "required" or '
        '{"type": "function", "function": {"name": "…"}}.',
        "tool_choice",
    )


def with_calls(body: ChatBody, format_: str, tokenizer: Any) -> ChatBody:
    """The body with the grammar of its calls, if its tools, its choice or its format ask for one.
    Raises `ApiError` for a function that isn't offered, and for two things that the text must
    be."""
    functions, must = _callable(body)
    name = named(body.tool_choice)
    form = constraint(body.structured_outputs, body.response_format)
    strict = any(function.strict for function in functions)
    if not must and not strict and form is None:
        return body
    if not functions:
        known = [tool.function.name for tool in body.tools]
        raise ApiError(400, str(unknown("function", str(name), known)), "tool_choice")
    apart = not must and bool(_SYNTAX[format_][0])  # without a tag, JSON could be either
    answer = _answer(body) if apart else None
    if form is not None and answer is None:
        field = "response_format" if body.structured_outputs is None else "structured_outputs"
        raise ApiError(
            400,
            f'{field} and calls can\'t be had at once; set tool_choice to "none", or leave {field} '
            "out.",
            field,
        )
    several = body.parallel_tool_calls and name is None
    added = {} if tokenizer is None else tokenizer.get_added_vocab()
    grammar = calls_grammar(functions, format_, must, several, added, answer)
    given = {"structured_outputs": {"grammar": grammar}, "response_format": None}
    return body.model_copy(update=given)


def _answer(body: ChatBody) -> Mapping[str, Any] | None:
    """The schema of an answer that is JSON by `response_format`; None for another one."""
    form = constraint(None, body.response_format) or {}
    schema: Mapping[str, Any] | None = form.get("json")
    return {"type": "object"} if form.get("json_object") else schema


def _callable(body: ChatBody) -> tuple[list[Function], bool]:
    """The functions that may be called, and whether one of them must be."""
    name = named(body.tool_choice)
    functions = [tool.function for tool in body.tools]
    called = [function for function in functions if name is None or function.name == name]
    return called, name is not None or body.tool_choice == "required"


def wrong_part(body: ChatBody) -> ApiError | None:
    """What names the first function whose calls are constrained to a schema that there isn't, or
    the format of the answer; None where none is wrong. For a grammar that has failed, whose error
    can't tell: it is one grammar for all."""
    functions, must = _callable(body)
    for function in functions:
        schema = _schema(function, must or bool(function.strict))
        if said := wrong_schema(schema):
            told = f"The parameters of function {shown(function.name)} can't be used: {said}"
            return ApiError(400, told, "tools")
    if said := wrong_schema(_answer(body) or {}):
        told = f"The schema of response_format can't be used: {said}"
        return ApiError(400, told, "response_format")
    return None


def calls_grammar(
    functions: Seq[Function],
    format_: str,
    must: bool,
    several: bool,
    added: Mapping[str, int],
    answer: Mapping[str, Any] | None = None,
) -> str:
    """What an answer may be. must: it is calls only, one at least, each by its function's schema;
    else it may also be a text, and arguments of functions that aren't strict may be any object.
    several: there may be more than one call. added: the tokenizer's added tokens, which stand in a
    text as themselves. answer: the schema of the one text that it may be, if not any."""
    tag, after, arguments, before, closing, between = _SYNTAX[format_]
    rules = [
        _rule(place, function, arguments, must or bool(function.strict))
        for place, function in enumerate(functions)
    ]
    body = " | ".join(f"f{place}" for place in range(len(rules)))
    inside = f"{_text(after)} ({body}) {_text(before)} {_tag(closing, added)}"
    more = f"({_text(between)} call)*" if several else ""
    call = f"call: {_tag(tag, added)} {inside}"
    if must:
        return "\n".join([f"start: call {more}", call, *rules])
    if answer is not None:
        value = json.dumps({**answer, "x-guidance": _COMPACT}, ensure_ascii=False)
        return "\n".join([f"start: call {more} | %json {value}", call, *rules])
    rules += _texts(_BARRED[format_], added)
    if not tag:  # calls from the first character on, or none
        first = r"FIRST: /\s*[^\s{](.|\n)*/ & ~/(.|\n)*<\|python_tag\|>(.|\n)*/"
        start = f"start: (FIRST (other TEXT?)*)? | call {more}"
        return "\n".join([start, f"call: {inside}", first, *rules])
    start = "start: (lead call)* free" if several else "start: free | lead call"
    opened = f"opened[lazy]: /(.|\\n)*/ {_text(tag)}"
    if tag in added:
        opened = f"opened: TEXT? {_tag(tag, added)}"
    lead, free = "lead: (TEXT? other)*", "free: lead TEXT?"
    return "\n".join([start, lead, free, opened, f"call: opened {inside}", *rules])


def _texts(barred: str, added: Mapping[str, int]) -> list[str]:
    """Rules for what is free: text, and added tokens, neither of them with the tag in it."""
    ids = ",".join(str(number) for name, number in sorted(added.items()) if name != barred)
    other = f"<[{ids}]>" if ids else "TEXT"
    inner = re.escape(barred)
    return [f"other: {other}", rf"TEXT: /(.|\n)+/ & ~/(.|\n)*{inner}(.|\n)*/"]


def _tag(text: str, added: Mapping[str, int]) -> str:
    """A tag, as the one token that it is, or as text."""
    return f"<[{added[text]}]>" if text in added else _text(text)


def _rule(place: int, function: Function, arguments: str, strict: bool) -> str:
    """How a function is called."""
    begun = f'{{"name": {json.dumps(function.name, ensure_ascii=False)}, "{arguments}": '
    value = json.dumps(_schema(function, strict), ensure_ascii=False)
    return f'f{place}: {_text(begun)} %json {value} "}}"'


def _schema(function: Function, strict: bool) -> dict[str, Any]:
    """What its arguments may be. strict: as its parameters say, and not any object."""
    schema: dict[str, Any] = {"type": "object"}
    if strict:
        schema |= _NOTHING if function.parameters is None else function.parameters
    return schema | {"x-guidance": _SPACES}


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
