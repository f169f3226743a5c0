"""How conversations become prompts."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import letters
from foretoken import ForetokenError
from foretoken.serve.conversation import conversation_ids
from foretoken.serve.errors import ApiError
from foretoken.serve.schema import Templated

SAID: list[dict[str, Any]] = [{"role": "user", "content": "x"}]


def test_variables_of_a_template() -> None:
    tokenizer = letters()
    tokenizer.chat_template = "{{ messages[0].content }}{{ mood }}"
    body = Templated(chat_template_kwargs={"mood": "ok"})
    assert conversation_ids(body, SAID, tokenizer) == tokenizer("xok")["input_ids"]


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "tools", "continue_final_message"])
def test_what_is_no_variable(name: str) -> None:
    with pytest.raises(ApiError, match=name):
        conversation_ids(Templated(chat_template_kwargs={name: "x"}), SAID, letters())


def test_documents() -> None:
    """As a field of their own, or as the variable that they are for the template."""
    tokenizer, documents = letters(), [{"text": "so"}]
    tokenizer.chat_template = "{{ documents[0].text }}{{ messages[0].content }}"
    for body in (
        Templated(documents=documents),
        Templated(chat_template_kwargs={"documents": documents}),
    ):
        assert conversation_ids(body, SAID, tokenizer) == tokenizer("sox")["input_ids"]
    with pytest.raises(ForetokenError, match="doesn't read documents"):
        conversation_ids(Templated(documents=documents), SAID, letters())


def test_a_message_to_be_continued() -> None:
    tokenizer = letters()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}"  # noqa: E501
    turns = [*SAID, {"role": "assistant", "content": "so"}]
    body = Templated(continue_final_message=True)
    assert conversation_ids(body, turns, tokenizer) == tokenizer("x;so")["input_ids"]


def test_messages_as_a_client_gives_them_back() -> None:
    """What is null was left out; calls that a template doesn't read are refused."""
    tokenizer = letters()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content or '' }}{% if 'tool_calls' in m %}"
        "{{ m.tool_calls | length }}{% endif %}{% if 'name' in m %}?{% endif %};{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    nothing = {"tool_calls": None, "name": None, "refusal": None}
    turns = [
        {"role": "user", "content": "x", "name": None},
        {"role": "assistant", "content": "so", **nothing},
        {"role": "assistant", "content": None, **nothing, "tool_calls": [call]},
    ]
    assert conversation_ids(Templated(), turns, tokenizer) == tokenizer("x;so;1;")["input_ids"]
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    assert conversation_ids(Templated(), turns[:2], tokenizer) == tokenizer("x;so;")["input_ids"]
    with pytest.raises(ForetokenError, match="doesn't read tool_calls"):
        conversation_ids(Templated(), turns, tokenizer)
