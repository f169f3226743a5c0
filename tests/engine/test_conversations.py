"""Chat templates: what they write, and one sentence for those that fail, loop or write for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.engine.conversations import template_options, texts, tool_options, written
from foretoken.engine.prompts import chat_ids
from foretoken.models.bundled import names, path
from foretoken.models.load import load_tokenizer
from foretoken.testing import ByteTokenizer

USER = {"role": "user", "content": "hi"}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """The threads that wrote templates have ended, in time for tests that count them."""
    yield
    for thread in threading.enumerate():
        if thread.name == "foretoken-deadline":
            thread.join(5)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def templated() -> Any:
    """A tokenizer of transformers, whose templates are jinja's."""
    if "mini" not in names():
        pytest.skip("the bundled models are not installed")
    return load_tokenizer(path("mini"))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "TemplateError: Roles must alternate"),
        ("{% for m in messages %}", "TemplateSyntaxError: "),
        ("{{ messages[0].nothing.there }}", "UndefinedError: "),
        ("{{ messages[0].content + 1 }}", "TypeError: "),
        ("{{ messages.__class__.__mro__ }}", "SecurityError: "),
        ("{{ range(10**9) }}", "OverflowError: "),
    ],
)
def test_a_template_that_fails(templated: Any, template: str, said: str) -> None:
    """One sentence with the template's own words and the conversation's roles."""
    templated.chat_template = template
    with pytest.raises(ForetokenError, match=said) as error:
        chat_ids([USER], templated)
    assert str(error.value).startswith("The chat template of 'mini' can't write this conversation")
    assert " (roles: 'user'): " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_template_without_an_end(templated: Any) -> None:
    """The caller is back in time, and the next conversation is written."""
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    templated.chat_template = loops
    began = time.perf_counter()
    with pytest.raises(ForetokenError, match=r"takes longer than 0\.2 s"):
        written([USER], templated, seconds=0.2)
    assert time.perf_counter() - began < 5
    templated.chat_template = "{{ messages[0].content }}"
    assert templated.decode(chat_ids([USER], templated)) == "hi"


def test_a_template_is_named_by_its_model(templated: Any) -> None:
    """By the folder's name, or as the hub names it; a tokenizer without one is just that."""
    templated.chat_template = "{{ nothing.there }}"
    kept = templated.name_or_path
    try:
        for name, told in ((kept, "'mini'"), ("someone/model", "'someone/model'")):
            templated.name_or_path = name
            with pytest.raises(ForetokenError, match=f"^The chat template of {told} can't write"):
                chat_ids([USER], templated)
        templated.name_or_path = ""
        with pytest.raises(ForetokenError, match=r"^The tokenizer's chat template can't write"):
            chat_ids([USER], templated)
    finally:
        templated.name_or_path = kept


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (["a"], r"is \['a'\]; it must be a text"),
        (3, "is 3; it must be a text"),
        (b"x", "is b'x'; it must be a text"),
        ({"default": 3}, r"is \{'default': 3\}; it must be a text"),
        ({"tool_use": "x"}, r"has no template 'default', only 'tool_use'"),
        ("\ud83d", "half of a surrogate pair"),
    ],
    ids=["list", "number", "bytes", "number by name", "no default", "surrogate"],
)
def test_a_template_that_is_none(templated: Any, template: Any, said: str) -> None:
    """Is refused by what it is."""
    templated.chat_template = template
    with pytest.raises(ForetokenError, match=said) as error:
        chat_ids([USER], templated)
    assert "\n" not in str(error.value)


def test_templates_by_name(templated: Any) -> None:
    """The one called default is used."""
    templated.chat_template = {"default": "{{ messages[0].content }}", "tool_use": "x"}
    assert written([USER], templated) == "hi"


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_calls_by_the_template_that_is_used(templated: Any) -> None:
    """Without tools that is the one called default, whatever others read."""
    contents = "{% for m in messages %}{{ m.content }};{% endfor %}"
    calls = "{{ tools[0].function.name }}{% for m in messages %}{{ m.tool_calls }};{% endfor %}"
    said = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    templated.chat_template = {"default": contents, "tool_use": calls}
    with pytest.raises(ForetokenError, match="doesn't read tool_calls; offer tools, for which"):
        written(said, templated)
    assert "'x': 1" in written(said, templated, options=tool_options(templated, TOOLS))
    templated.chat_template = {"default": calls, "tool_use": contents}
    with pytest.raises(ForetokenError, match="template doesn't read tools"):
        tool_options(templated, TOOLS)
    with pytest.raises(ForetokenError, match="doesn't read tool_calls; write the calls as text"):
        written(said, templated, options={"tools": TOOLS})
    templated.chat_template = {"default": contents}
    with pytest.raises(ForetokenError, match="doesn't read tool_calls; write the calls as text"):
        written(said, templated)


def test_an_answer_without_calls(templated: Any) -> None:
    """An empty list of them is none: templates ask whether there are any by the name alone."""
    templated.chat_template = "{{ 'tool_calls' in messages[1] }}"
    for calls in ({}, {"tool_calls": []}, {"tool_calls": None}):
        said = [USER, {"role": "assistant", "content": "so", **calls}]
        assert written(said, templated) == "False"


def test_documents(templated: Any) -> None:
    """A template that answers from documents gets them; another one would leave them out."""
    options = template_options(templated, None, {"documents": [{"text": "so"}]})
    templated.chat_template = "{{ documents[0].text }}:{{ messages[0].content }}"
    assert written([USER], templated, options=options) == "so:hi"
    templated.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ForetokenError, match="doesn't read documents; write them into a message"):
        written([USER], templated, options=options)
    assert written([USER], templated, options={"documents": []}) == "hi"


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_an_answer_without_a_content_is_empty(templated: Any, role: str) -> None:
    """As in vLLM: answers come back as they were given."""
    templated.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    for turn in ({"role": role, "content": None}, {"role": role}):
        assert written([USER, turn], templated) == f"user:hi;{role}:;"
    with pytest.raises(ForetokenError, match="content of message 0 is None"):
        written([{"role": "user", "content": None}], templated)


def test_parts_that_hold_text_under_other_names(templated: Any) -> None:
    templated.chat_template = "{{ messages[0].content }}"
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
        {"type": "thinking", "thinking": "d"},
    ]
    assert written([{"role": "assistant", "content": parts}], templated) == "a\nb\nc\nd"
    for wrong, said in (
        ({"type": "refusal", "text": "x"}, "is {'type'"),
        ({"type": []}, "is of type"),
    ):
        with pytest.raises(ForetokenError, match=f"part of message 0 {said}"):
            written([{"role": "assistant", "content": [wrong]}], templated)


@pytest.mark.parametrize("key", ["images", "audio"])
def test_what_is_sent_with_a_message_and_not_read_is_refused(templated: Any, key: str) -> None:
    templated.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ForetokenError, match=f"Message 0 has {key}"):
        written([USER | {key: ["x"]}], templated)
    assert written([USER | {key: None}], templated) == "hi"


def test_a_template_that_writes_too_much(templated: Any) -> None:
    """What no tokenizer could read in time isn't given to one."""
    templated.chat_template = "{{ 'ab' * 30000000 }}"
    with pytest.raises(ForetokenError, match="writes 60,000,000 characters, and at most"):
        chat_ids([USER], templated)
    templated.chat_template = "{{ 'ab' * 3000 }}"
    assert len(written([USER], templated)) == 6000


def test_a_template_that_fills_the_memory(templated: Any) -> None:
    """It ends long before the machine's is full."""
    many = "{% for i in range(99999) %}{{ 'a' * (4999999 + i) }}{% endfor %}"
    templated.chat_template = many
    with pytest.raises(ForetokenError, match="takes too much memory; look for a loop"):
        written([USER], templated, memory=2**27)


def test_a_tokenizer_that_writes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one's own: what it gives is not turned into a text without a word."""
    tokenizer = ByteTokenizer()
    monkeypatch.setattr(ByteTokenizer, "apply_chat_template", lambda *_, **__: [1, 2])
    with pytest.raises(ForetokenError, match=r"wrote \[1, 2\]; it must be a text"):
        chat_ids([USER], tokenizer)


def test_a_call_of_openais_older_form() -> None:
    """No template would write it."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    with pytest.raises(ForetokenError, match=r"Message 1 has function_call, .* as tool_calls"):
        texts([{"role": "user", "content": "a"}, call])
    assert texts([{**call, "function_call": None}]) == [{"role": "assistant", "content": ""}]
