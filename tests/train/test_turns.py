"""Turns of conversations as token ids."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from foretoken import LLM, ForetokenError
from foretoken.serve.conversation import conversation_ids
from foretoken.serve.schema import Templated
from foretoken.spellings import Conversation
from foretoken.spellings import conversation as spelled
from foretoken.testing import Pair
from foretoken.train.turns import end_of_turn, fixed, prompt_ids, whole_ids

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}<call>{{ m.tool_calls[0].function.name }}</call>{% endif %}"
    "{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def llm() -> LLM:
    """Its tokenizer's own end is `<|endoftext|>`, 0, its template's another one, as Qwen's."""
    llm = LLM("mini")
    llm.tokenizer.add_special_tokens(  # type: ignore[union-attr]
        {"additional_special_tokens": ["<|im_end|>", "<|im_start|>"]}
    )
    llm.tokenizer.chat_template = TEMPLATE  # type: ignore[union-attr]
    return llm


@pytest.fixture
def two_ends(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Texts end at either."""
    end = ids(llm, "<|im_end|>")
    monkeypatch.setattr(llm.engine, "eos_ids", frozenset({0, *end}))
    return llm


def ids(llm: LLM, text: str) -> list[int]:
    found: list[int] = llm.tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[misc]
    return found


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def conversation(*whole: dict[str, Any]) -> Conversation:
    return Conversation(whole[:1], whole=whole)


def test_the_end_of_a_turn(two_ends: LLM) -> None:
    """The template's own, not the smallest id; of raw texts the tokenizer's."""
    assert end_of_turn(two_ends) == ids(two_ends, "<|im_end|>")
    assert end_of_turn(two_ends, raw=True) == [0]


def test_an_end_that_the_template_does_not_write(llm: LLM) -> None:
    """Texts end at `<|endoftext|>` alone."""
    assert end_of_turn(llm) == [0]


def test_every_turn_of_the_assistant(two_ends: LLM) -> None:
    """Each with all that was said before it; a greeting is no answer, whoever asks for one."""
    for role in ("system", "developer"):
        greeted = conversation(said(role, "Be kind."), said("assistant", "Hello."))
        assert not len(fixed(two_ends, [greeted], 512))
    turns = [
        said("assistant", "Hello."),
        said("user", "One"),
        said("assistant", "two"),
        said("user", "three"),
        said("assistant", "four"),
    ]
    records = fixed(two_ends, [conversation(*turns)], 512)
    end = ids(two_ends, "<|im_end|>")
    assert len(records) == 2
    for i, at in enumerate((2, 4)):
        assert records.prompt(i) == two_ends.chat_prompt(turns[:at])
        assert records.answer(i) == [*ids(two_ends, turns[at]["content"]), *end]


def test_turns_that_are_not_to_be_learned(two_ends: LLM) -> None:
    """Of weight 0, as OpenAI's files have it; they are read before the others."""
    turns = [
        said("user", "One"),
        said("assistant", "two", weight=0),
        said("user", "three"),
        said("assistant", "four", weight=1),
    ]
    records = fixed(two_ends, [spelled({"messages": turns})], 512)
    assert len(records) == 1 and records.prompt(0) == two_ends.chat_prompt(turns[:3])
    assert records.answer(0) == ids(two_ends, "four<|im_end|>")


def test_calls_that_there_are_not(two_ends: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose turns all have one schema write an empty list; some templates (Llama 3.1's) only
    look whether there is one, and some (Qwen 3's) write a last answer otherwise than a text."""
    monkeypatch.setattr(
        two_ends.tokenizer,
        "chat_template",
        "{% for m in messages %}{% if 'tool_calls' in m %}{{ raise_exception('one call') }}"
        "{% endif %}{{ m.role }}:{% if m.role == 'assistant' and loop.last %}<think></think>"
        "{% endif %}{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
    )
    plain, *others = (
        fixed(
            two_ends, [conversation(said("user", "?"), said("assistant", "ab", **more))], 512
        ).answer(0)
        for more in ({}, {"tool_calls": []}, {"reasoning_content": ""})
    )
    assert others == [plain, plain]


def test_calls_of_tools(two_ends: LLM) -> None:
    """As the template writes them, to the turn's end; what the tool says is read."""
    call = said("assistant", None, tool_calls=[{"function": {"name": "look"}}])
    turns = [said("user", "One"), call, said("tool", "9"), said("assistant", "two")]
    records = fixed(two_ends, [conversation(*turns)], 512)
    assert records.answer(0) == ids(two_ends, "<call>look</call><|im_end|>")
    assert "tool" in two_ends.tokenizer.decode(records.prompt(1))  # type: ignore[union-attr]


ARGUMENTS = TEMPLATE.replace(
    "{{ m.tool_calls[0].function.name }}", "{{ m.tool_calls[0].function.arguments | tojson }}"
)


def test_arguments_and_tools_as_the_server_gives_them(two_ends: LLM) -> None:
    """Arguments as values, which a file has as JSON, and the declared tools, which the template
    writes before every turn."""
    tokenizer: Any = two_ends.tokenizer
    tokenizer.chat_template = "{% if tools %}<{{ tools[0].function.name }}>{% endif %}" + ARGUMENTS
    call = {"function": {"name": "look", "arguments": '{"place": "sea"}'}}
    tools = [{"type": "function", "function": {"name": "look"}}]
    turns = [said("user", "One"), said("assistant", None, tool_calls=[call])]
    row = {"messages": [*turns, said("tool", "9"), said("assistant", "two")], "tools": tools}
    records = fixed(two_ends, [spelled(row)], 512)
    assert records.answer(0) == ids(two_ends, '<call>{"place": "sea"}</call><|im_end|>')
    asked: Any = {"tools": tools, "chat_template_kwargs": {}}
    for i, end in enumerate((1, 3)):
        served = conversation_ids(Templated(**asked), row["messages"][:end], tokenizer)
        assert records.prompt(i) == served
    assert tokenizer.decode(records.prompt(1)).startswith("<look>")
    tokenizer.chat_template = ARGUMENTS
    with pytest.raises(ForetokenError, match="doesn't read tools; describe them in a system"):
        fixed(two_ends, [spelled(row)], 512)


def test_what_is_left_out(two_ends: LLM, caplog: pytest.LogCaptureFixture) -> None:
    """Answers beyond the length, and turns that the template begins otherwise than an answer."""
    call = said("assistant", "x", tool_calls=[{"function": {"name": "look"}}])
    turns = [said("user", "word " * 40), said("assistant", "two")]
    two_ends.tokenizer.chat_template = TEMPLATE.replace(  # type: ignore[union-attr]
        "assistant\n{% endif %}", "assistant\n<think>{% endif %}"
    )
    given = [conversation(*turns), conversation(said("user", "a"), call)]
    with caplog.at_level(logging.WARNING):
        assert not len(fixed(two_ends, given, 40))
        size = len(two_ends.chat_prompt(turns[:1]))
        assert not len(fixed(two_ends, given[:1], size))
    for count in (40, size):
        told = f"1 answers are left out: what is before them has {count} tokens or more"
        assert told in caplog.text
    assert "1 answers are left out: the chat template writes them in another way" in caplog.text


def test_a_conversation_that_the_template_refuses(
    two_ends: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    """As Mistral's does where roles don't alternate: it is left out; where all are, that is the
    error."""
    two_ends.tokenizer.chat_template = (  # type: ignore[union-attr]
        "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
        + TEMPLATE
    )
    greeted = [said("assistant", "Hello."), said("user", "a"), said("assistant", "b")]
    turns = [said("user", "One"), said("assistant", "two")]
    with caplog.at_level(logging.WARNING):
        assert len(fixed(two_ends, [conversation(*greeted), conversation(*turns)], 512)) == 1
    assert "1 conversations are left out, the first as: " in caplog.text
    assert "user first" in caplog.text
    with pytest.raises(ForetokenError, match="user first"):
        fixed(two_ends, [conversation(*greeted)], 512)


def test_tokens_beyond_the_models(two_ends: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay what they are, also where they take more bytes than the model's own."""
    monkeypatch.setattr("foretoken.train.turns._answers", lambda *_: [([1], [70_000])])
    records = fixed(two_ends, [conversation(said("user", "a"))], 512)
    assert records.answer(0) == [70_000]


def test_answers_of_nothing(two_ends: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As empty raw texts without an end: there is nothing to learn."""
    monkeypatch.setattr("foretoken.train.turns._answers", lambda *_: [([1], []), ([1], [2])])
    assert len(fixed(two_ends, [conversation(said("user", "a"))], 512)) == 1


def test_raw_texts(two_ends: LLM) -> None:
    """Without a template, with the tokenizer's end; a prompt as the tokenizer begins it."""
    asked, answer = said("user", "One"), said("assistant", "two")
    pair = Conversation((asked,), whole=(asked, answer), raw=True)
    alone = Conversation((), whole=(answer,), raw=True)
    records = fixed(two_ends, [pair, alone], 64)
    assert records.prompt(0) == two_ends.tokenizer("One")["input_ids"]  # type: ignore[misc]
    assert records.prompt(1) == [] == prompt_ids(two_ends, alone, ())
    assert records.answer(0) == records.answer(1) == [*ids(two_ends, "two"), 0]


SPACED = (
    "{% for m in messages %}{{ m.role }}:SPACE{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def spaced(template: str) -> Any:
    """A tokenizer that puts a space before every text, as Llama 2's does."""
    letters = {letter: i for i, letter in enumerate("\u2581\n:abcdefghijklmnopqrstuvwxyz")}
    inner = Tokenizer(models.BPE(letters, []))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template)


@pytest.mark.parametrize("space", ["", " "])
def test_tokenizers_that_begin_texts_with_a_space(pair: Pair, space: str) -> None:
    """An answer has it where its template writes one, and a raw text none."""
    tokenizer = spaced(SPACED.replace("SPACE", space))
    llm = LLM(pair.target, tokenizer=tokenizer)
    turns = (said("user", "one"), said("assistant", "two"))
    raw = Conversation(turns[:1], whole=turns, raw=True)
    records = fixed(llm, [conversation(*turns), raw], 64)
    for i, text in enumerate((f"user:{space}one\nassistant:{space}two", "onetwo")):
        whole = records.prompt(i) + records.answer(i)
        assert whole == tokenizer(text)["input_ids"]


CALLING = SPACED.replace("{{ m.content }}", "{{ m.content or m.tool_calls[0].function.name }}")


@pytest.mark.parametrize("space", ["", " "])
def test_calls_with_tokenizers_that_begin_texts_with_a_space(pair: Pair, space: str) -> None:
    """What the template writes of a call is the text that it is after the prompt, too."""
    tokenizer = spaced(CALLING.replace("SPACE", space))
    call = said("assistant", None, tool_calls=[{"function": {"name": "look"}}])
    llm = LLM(pair.target, tokenizer=tokenizer)
    records = fixed(llm, [conversation(said("user", "one"), call)], 64)
    whole = tokenizer(f"user:{space}one\nassistant:{space}look\n")["input_ids"]
    assert records.prompt(0) + records.answer(0) == whole


def test_how_a_call_ends(two_ends: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an answer does where the template writes no end after it; else as the template has it,
    which may be another end."""
    call = said("assistant", None, tool_calls=[{"function": {"name": "look"}}])
    tokenizer: Any = two_ends.tokenizer
    for written, learned in (("", "<|im_end|>"), ("<|im_start|>", "<|im_start|>")):
        tokenizer.chat_template = TEMPLATE.replace(
            "</call>{% endif %}{{ m.content or '' }}<|im_end|>\n",
            f"</call>{written}{{% else %}}{{{{ m.content }}}}<|im_end|>\n{{% endif %}}",
        )
        assert written in tokenizer.chat_template and "else" in tokenizer.chat_template
        ends = {0, *ids(two_ends, "<|im_end|><|im_start|>")}
        monkeypatch.setattr(two_ends.engine, "eos_ids", frozenset(ends))
        records = fixed(two_ends, [conversation(said("user", "One"), call)], 512)
        assert records.answer(0) == ids(two_ends, f"<call>look</call>{learned}")


def test_a_call_goes_on_to_its_last_end(two_ends: LLM) -> None:
    call = said("assistant", None, tool_calls=[{"function": {"name": "look"}}])
    tokenizer: Any = two_ends.tokenizer
    tokenizer.chat_template = TEMPLATE.replace("</call>", "</call><|im_end|>")
    records = fixed(two_ends, [conversation(said("user", "One"), call)], 512)
    assert records.answer(0) == ids(two_ends, "<call>look</call><|im_end|><|im_end|>")


def test_a_raw_text_begins_as_a_prompt_does(two_ends: LLM) -> None:
    """With the special token that a prompt would have, and one end."""
    tokenizer: Any = two_ends.tokenizer
    alone = Conversation((), whole=(said("assistant", "two"),), raw=True)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|endoftext|>",
        special_tokens=[("<|im_start|>", *ids(two_ends, "<|im_start|>")), ("<|endoftext|>", 0)],
    )
    records = fixed(two_ends, [alone], 64)
    assert records.answer(0) == [*ids(two_ends, "<|im_start|>"), *ids(two_ends, "two"), 0]


def test_answers_without_a_word(two_ends: LLM, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a text nor a call: a drafter would learn to end. What comes after them is learned."""
    empty = [said("assistant", ""), said("assistant", None), {"role": "assistant", "name": "bot"}]
    rows = [[said("user", "One"), turn] for turn in empty]
    rows += [[said("user", "One"), empty[1], said("user", "two"), said("assistant", "three")]]
    given = [spelled({"messages": row}) for row in rows] + [spelled({"text": ""})]
    with caplog.at_level(logging.WARNING):
        records = fixed(two_ends, given, 512)
    assert len(records) == 1 and records.answer(0) == ids(two_ends, "three<|im_end|>")
    assert "5 answers are left out: they have neither a text nor a call" in caplog.text


def test_calls_of_openais_older_form(two_ends: LLM) -> None:
    """Are learned as the newer one's; without a place for calls the conversation is left out."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "look"}}
    row = {"messages": [said("user", "One"), call]}
    records = fixed(two_ends, [spelled(row)], 512)
    assert records.answer(0) == ids(two_ends, "<call>look</call><|im_end|>")
    two_ends.tokenizer.chat_template = SPACED.replace("SPACE", "")  # type: ignore[union-attr]
    with pytest.raises(ForetokenError, match="doesn't read tool_calls"):
        fixed(two_ends, [spelled(row)], 512)


def test_a_whole_conversation(two_ends: LLM) -> None:
    """As one text, with the beginning of an answer where one is to follow."""
    turns = [said("user", "One"), said("assistant", "two"), said("user", "three")]
    assert whole_ids(two_ends, conversation(*turns)) == two_ends.chat_prompt(turns)
    written = "<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
    assert whole_ids(two_ends, conversation(*turns[:2])) == ids(two_ends, written)
    asked = Conversation((turns[0],))
    assert whole_ids(two_ends, asked) == two_ends.chat_prompt(turns[:1])
    for row in ({"prompt": "One", "completion": "two"}, {"text": "Onetwo"}):
        assert whole_ids(two_ends, spelled(row)) == ids(two_ends, "Onetwo")
