"""Conversations as texts: messages checked, and written by a tokenizer's chat template.

A template is a program that comes with a model: it may fail, loop, or write without an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.engine.deadline import MEMORY, within
from foretoken.errors import ForetokenError, one_line, shown
from foretoken.errors.values import typed

Messages = Seq[Mapping[str, Any]]

TEMPLATE_SECONDS = 10.0
"""How long a chat template may take."""

NO_VARIABLES = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}
"""What decides how a template is run, and is no variable of it."""

_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Type of a part -> where its text is, as in vLLM."""
_LEFT_OUT = {
    "tool_calls": "write the calls as text",
    "documents": "write them into a message",
}
"""What a conversation may have that not all templates read -> what to do then."""
_UNREAD = ("images", "audio")
"""What clients send with a message and isn't read."""
_MOST = 10_000_000  # characters; more are more tokens than any model's context has
_BYTES = (str, bytes, bytearray, memoryview)


def written(
    messages: Any,
    tokenizer: Any,
    *,
    reply: bool = True,
    options: Mapping[str, Any] | None = None,
    seconds: float = TEMPLATE_SECONDS,
    memory: int = MEMORY,
) -> str:
    """A conversation as its template writes it, up to where the assistant's turn begins if a
    `reply` is to follow. options: what else the template reads.

    Raises `ForetokenError` for messages that aren't texts, and for a template that fails, that
    takes longer than `seconds` or more than `memory` bytes, or that writes too much.
    """
    turns = texts(messages)
    name = _checked(tokenizer)
    given = options or {}
    calls = any(turn.get("tool_calls") for turn in turns)
    _check_reads(tokenizer, name, {**given, "tool_calls": calls}, bool(given.get("tools")))

    def render() -> Any:
        own = {"add_generation_prompt": reply, "tokenize": False}
        return tokenizer.apply_chat_template(turns, **{**given, **own})

    hint = "; look for a loop in it, or use generate() with a ready prompt."
    try:
        text = within(seconds, render, memory)
    except TimeoutError as error:
        raise ForetokenError(f"{name} takes longer than {seconds:g} s{hint}") from error
    except MemoryError as error:
        raise ForetokenError(f"{name} takes too much memory{hint}") from error
    except Exception as error:
        roles = ", ".join(shown(turn["role"]) for turn in turns[:8])
        raise ForetokenError(
            f"{name} can't write this conversation (roles: {roles}): "
            f"{type(error).__name__}: {one_line(error)}."
        ) from error
    if not isinstance(text, str):
        raise ForetokenError(f"{name} wrote {shown(text)}; it must be a text.")
    if len(text) > _MOST:
        raise ForetokenError(f"{name} writes {len(text):,} characters, and at most {_MOST:,}{hint}")
    return text


def _check_reads(tokenizer: Any, name: str, given: Mapping[str, Any], tools: bool) -> None:
    """Raise `ForetokenError` for what the template would leave out without a word."""
    for variable, remedy in _LEFT_OUT.items():
        if given.get(variable) and not _reads(tokenizer, variable, tools):
            if not tools and _reads(tokenizer, variable, True):
                remedy = f"offer tools, for which there is one that does, or {remedy}"
            raise ForetokenError(f"{name} doesn't read {variable}; {remedy}.")


def _reads(tokenizer: Any, variable: str, tools: bool) -> bool:
    """Whether the chat template by which a conversation is written, with tools or without any,
    names a variable."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        named = "tool_use" if tools and "tool_use" in template else "default"
        template = template[named]
    return re.search(rf"\b{variable}\b", template) is not None


def tool_options(tokenizer: Any, tools: Seq[Mapping[str, Any]]) -> dict[str, Any]:
    """The option of `written` by which a template reads the functions that may be called; none
    where there are no tools. Raises `ForetokenError` for a template that doesn't read them."""
    if not tools:
        return {}
    _checked(tokenizer)
    if not _reads(tokenizer, "tools", True):
        raise ForetokenError(
            "This model's chat template doesn't read tools; describe them in a system message."
        )
    return {"tools": list(tools)}


def template_options(tokenizer: Any, tools: Any, variables: Any) -> dict[str, Any]:
    """What a template reads beside messages: the functions that may be called, and variables of its
    own. Raises `ForetokenError` for functions that it doesn't read, and for what is no variable."""
    hint = Mapping[str, Any] | None
    options: dict[str, Any] = dict(typed("chat_template_kwargs", variables, hint) or {})
    wrong = sorted(NO_VARIABLES & options.keys())
    if wrong:
        raise ForetokenError(
            f"chat_template_kwargs has {wrong[0]}, which is no variable of a template; leave it "
            "out."
        )
    functions = typed("tools", tools, Seq[Mapping[str, Any]] | None)
    if functions and tokenizer is not None:  # without one the conversation is refused
        options |= tool_options(tokenizer, functions)
    return options


def _checked(tokenizer: Any) -> str:
    """The template's name for sentences. Raises `ForetokenError` where it is none."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ForetokenError(
            "The tokenizer has no chat template; use generate() with a ready prompt."
        )
    model = str(getattr(tokenizer, "name_or_path", ""))
    short = Path(model).name if Path(model).is_absolute() else model
    name = f"The chat template of {short!r}" if short else "The tokenizer's chat template"
    named = template if isinstance(template, Mapping) else {"default": template}
    if not all(isinstance(text, str) for text in named.values()):
        raise ForetokenError(f"{name} is {shown(template)}; it must be a text, or texts by name.")
    if "default" not in named:
        only = ", ".join(map(shown, named))
        raise ForetokenError(f"{name} has no template 'default', only {only}; add it.")
    return name


def texts(messages: Any) -> list[dict[str, Any]]:
    """The messages with their contents as texts. Raises `ForetokenError` for others."""
    if not isinstance(messages, Seq) or isinstance(messages, _BYTES) or not messages:
        raise ForetokenError(
            f"A conversation is {shown(messages)}; give a list of messages, each a mapping with "
            "'role' and 'content'."
        )
    return [_turn(place, message) for place, message in enumerate(messages)]


def _turn(place: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ForetokenError(
            f"Message {place} is {shown(message)}; give a mapping with 'role' and 'content', both "
            "texts."
        )
    unread = next((name for name in _UNREAD if message.get(name)), None)
    if unread is not None:
        raise ForetokenError(f"Message {place} has {unread}; only texts are read, so leave it out.")
    if message.get("function_call"):
        raise ForetokenError(
            f"Message {place} has function_call, OpenAI's older form, which templates don't read; "
            "give it as tool_calls, a list of one."
        )
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and not calls and message["role"] in ("assistant", "tool"):
        content = ""
    if isinstance(content, Seq) and not isinstance(content, _BYTES):
        content = "\n".join(_part(place, part) for part in content)
    if not isinstance(content, str) and not (content is None and calls):
        raise ForetokenError(
            f"The content of message {place} is {shown(content)}; give a text, or a list of parts "
            'such as {"type": "text", "text": …}.'
        )
    given = {k: v for k, v in message.items() if v is not None and (k, v) != ("tool_calls", [])}
    turn = {**given, "content": content}  # templates ask for a list, even an empty one
    if "tool_calls" in turn:
        turn["tool_calls"] = _calls(place, turn["tool_calls"])
    return turn


def _calls(place: int, calls: Any) -> list[dict[str, Any]]:
    """A turn's calls with the arguments as values, which templates expect; in requests, and in most
    files, they are JSON as text."""
    if not isinstance(calls, Seq) or isinstance(calls, _BYTES):
        raise _wrong_calls(place)
    return [_call(place, call) for call in calls]


def _call(place: int, call: Any) -> dict[str, Any]:
    """A call, which some files have without "function" around it."""
    if not isinstance(call, Mapping):
        raise _wrong_calls(place)
    if "function" in call:
        return {**call, "function": _call(place, call["function"])}
    given = call.get("arguments") or {}
    arguments = _read(given) if isinstance(given, str) else given
    if not isinstance(call.get("name"), str) or not isinstance(arguments, Mapping):
        raise _wrong_calls(place)
    return {**call, "arguments": dict(arguments)}


def _read(arguments: str) -> Mapping[str, Any]:
    """The object that a model has written; an empty one where it wrote none or was cut off, as in
    vLLM: its own call comes back with every later turn, which must not all be refused."""
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, Mapping) else {}


def _wrong_calls(place: int) -> ForetokenError:
    return ForetokenError(
        f"The tool_calls of message {place} must be a list of "
        '{"type": "function", "function": {"name": …, "arguments": …}}, the arguments an '
        "object or a text."
    )


def _part(place: int, part: Any) -> str:
    """The text of a part of a message; parts are written line by line, as vLLM does."""
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    key = _TEXTS.get(kind) if isinstance(kind, str) else None
    text = part if isinstance(part, str) else part.get(key) if key is not None else None
    if not isinstance(text, str):
        named = shown(part) if kind is None or key is not None else f"of type {shown(kind)}"
        raise ForetokenError(
            f"A part of message {place} is {named}; only parts of text are read: "
            '{"type": "text", "text": …}.'
        )
    return text
