"""Conversations of requests as token ids."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from pydantic_core import from_json

from foretoken.engine.conversations import reads
from foretoken.engine.prompts import chat_ids
from foretoken.serve.errors import ApiError
from foretoken.serve.schema import Templated

_OURS = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
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


def conversation_ids(
    body: Templated, messages: list[dict[str, Any]], tokenizer: Any, special: bool = False
) -> list[int]:
    """The token ids of messages by the model's template. special: whether the tokenizer adds
    special tokens to what the template writes.

    Raises `ApiError` and `ForetokenError` for what can't be written.
    """
    options = dict(body.chat_template_kwargs)
    wrong = sorted(_OURS & options.keys())
    if wrong:
        raise ApiError(
            400,
            f"chat_template_kwargs has {wrong[0]}, which is the server's; leave it out.",
            "chat_template_kwargs",
        )
    if body.continue_final_message:
        options["continue_final_message"] = True
    if body.tools and tokenizer is not None:
        if not reads(tokenizer, "tools"):
            raise ApiError(
                400,
                "This model's chat template doesn't read tools; describe them in a system message.",
                "tools",
            )
        options["tools"] = [tool.model_dump(exclude_unset=True) for tool in body.tools]
    reply = body.add_generation_prompt and not body.continue_final_message
    turns = [_with_read_arguments(place, turn) for place, turn in enumerate(messages)]
    return chat_ids(turns, tokenizer, reply=reply, options=options, special=special)


def _with_read_arguments(place: int, turn: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls' arguments are values, as templates expect; in requests they are JSON
    texts."""
    calls = turn.get("tool_calls")
    if calls is None:
        return turn
    if not isinstance(calls, Seq) or isinstance(calls, str):
        raise _wrong_calls(place)
    return {**turn, "tool_calls": [_read(place, call) for call in calls]}


def _read(place: int, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong_calls(place)
    arguments = function.get("arguments") or {}
    try:
        read = from_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise _wrong_calls(place) from error
    if not isinstance(read, dict):
        raise _wrong_calls(place)
    return {**call, "function": {**function, "arguments": read}}


def _wrong_calls(place: int) -> ApiError:
    return ApiError(
        400,
        f"The tool_calls of message {place} must be a list of "
        '{"type": "function", "function": {"name": …, "arguments": …}}, the arguments an object as '
        "JSON.",
        "messages",
    )
