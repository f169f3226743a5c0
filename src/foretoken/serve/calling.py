"""Which functions an answer calls, as a grammar: for a `tool_choice` that makes the model call, and
for functions whose arguments are to be strict.

Arguments are written as chat templates write them, by `json.dumps`: a space after commas and
colons, no other white space. The grammars are Lark's in llguidance's dialect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.errors import shown, unknown
from foretoken.serve.errors import ApiError
from foretoken.serve.schema import ChatBody, Function

_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_SYNTAX = {
    "hermes": ("<tool_call>\n", "arguments", "\n</tool_call>", "\n"),
    "llama3_json": ("", "parameters", "", "; "),
}
"""Format -> what opens a call, the name of its arguments, what closes it, what parts two."""
_FREE = {
    "hermes": r"/(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/",
    "llama3_json": r"/(\s*[^\s{](.|\n)*)?/ & ~/<\|python_tag\|>(.|\n)*/",
}
"""Format -> a text in which nothing is called."""


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


def with_calls(body: ChatBody, format_: str) -> ChatBody:
    """The body with the grammar of its calls, if its tools or its choice ask for one. Raises
    `ApiError` for a function that isn't offered, and for two things that the text must be."""
    functions = [tool.function for tool in body.tools]
    name = named(body.tool_choice)
    must = name is not None or body.tool_choice == "required"
    if not must and not any(function.strict for function in functions):
        return body
    if name is not None:
        functions = [function for function in functions if function.name == name]
    if not functions:
        known = [tool.function.name for tool in body.tools]
        raise ApiError(400, str(unknown("function", str(name), known)), "tool_choice")
    plain = body.response_format is None or body.response_format.get("type") == "text"
    if body.structured_outputs is not None or not plain:
        field = "response_format" if body.structured_outputs is None else "structured_outputs"
        raise ApiError(
            400,
            f"{field} and calls that are constrained can't be had at once; leave one out.",
            field,
        )
    several = body.parallel_tool_calls and name is None
    grammar = calls_grammar(functions, format_, must, several)
    return body.model_copy(update={"structured_outputs": {"grammar": grammar}})


def calls_grammar(functions: Seq[Function], format_: str, must: bool, several: bool) -> str:
    """What an answer may be. must: it is calls only, one at least, each by its function's schema;
    else it may also be a text, and arguments of functions that aren't strict may be any object.
    several: there may be more than one call."""
    opens, arguments, closes, between = _SYNTAX[format_]
    rules = [
        _rule(place, function, arguments, must or bool(function.strict))
        for place, function in enumerate(functions)
    ]
    body = f"body: {' | '.join(f'f{place}' for place in range(len(rules)))}"
    start, call = [], f"call: {_text(opens)} body {_text(closes)}"
    if must or format_ != "hermes":
        more = f" ({_text(between)} call)*" if several else ""
        start.append(f"start: call{more}" if must else f"start: FREE | call{more}")
    else:  # calls anywhere in a text
        tag, rest = opens[:-1], opens[-1:]
        start.append("start: call* FREE" if several else "start: FREE | call")
        start.append(f"opened[lazy]: /(.|\\n)*/ {_text(tag)}")
        call = f"call: opened {_text(rest)} body {_text(closes)}"
    free = [] if must else [f"FREE: {_FREE[format_]}"]
    return "\n".join([*start, call, body, *rules, *free])


def _rule(place: int, function: Function, arguments: str, strict: bool) -> str:
    """How a function is called."""
    schema: Any = {"type": "object"}
    if strict:
        schema |= _NOTHING if function.parameters is None else function.parameters
    begun = f'{{"name": {json.dumps(function.name, ensure_ascii=False)}, "{arguments}": '
    value = json.dumps(schema | {"x-guidance": _SPACES}, ensure_ascii=False)
    return f'f{place}: {_text(begun)} %json {value} "}}"'


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
