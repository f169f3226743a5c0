"""Conversations of requests as token ids."""

from __future__ import annotations

from typing import Any

from foretoken.engine.conversations import NO_VARIABLES, tool_options
from foretoken.engine.prompts import chat_ids
from foretoken.errors import ForetokenError
from foretoken.serve.errors import ApiError
from foretoken.serve.schema import Templated


def conversation_ids(
    body: Templated,
    messages: list[dict[str, Any]],
    tokenizer: Any,
    special: bool = False,
    most: int | None = None,
) -> list[int]:
    """The token ids of messages by the model's template. special: whether the tokenizer adds
    special tokens to what the template writes. most: see `prompts.text_ids`.

    Raises `ApiError` and `ForetokenError` for what can't be written.
    """
    options = dict(body.chat_template_kwargs)
    wrong = sorted(NO_VARIABLES & options.keys())
    if wrong:
        raise ApiError(
            400,
            f"chat_template_kwargs has {wrong[0]}, which is the server's; leave it out.",
            "chat_template_kwargs",
        )
    if body.continue_final_message:
        options["continue_final_message"] = True
    if body.documents:
        options["documents"] = body.documents
    if body.tools and tokenizer is not None:
        given = [{**tool.model_dump(exclude_unset=True), "type": tool.type} for tool in body.tools]
        try:
            options |= tool_options(tokenizer, given)
        except ForetokenError as error:
            raise ApiError(400, str(error), "tools") from error
    reply = body.add_generation_prompt and not body.continue_final_message
    return chat_ids(messages, tokenizer, reply=reply, options=options, special=special, most=most)
