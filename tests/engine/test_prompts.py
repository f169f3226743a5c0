"""Prompts in every form that users bring; one sentence for what is none."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from case_names import case_name
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.engine.prompts import (
    chat_ids,
    encoded,
    single,
    split,
    split_conversations,
    text_ids,
)
from foretoken.testing import ByteTokenizer, Pair

TOKENIZER = ByteTokenizer()
TEXT = "hello"
IDS = TOKENIZER.encode(TEXT)
PADDED = {
    "input_ids": [[0, 0, *IDS], [*IDS, 0, 0]],
    "attention_mask": [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]],
}


FORMS: list[tuple[Any, str | None]] = [
    (TEXT, TEXT),
    (np.str_(TEXT), TEXT),
    (IDS, None),
    (tuple(IDS), None),
    (deque(IDS), None),
    ([np.int64(i) for i in IDS], None),
    ([torch.tensor(i) for i in IDS], None),
    (np.array(IDS), None),
    (np.array(IDS, dtype=np.uint8), None),
    (torch.tensor(IDS), None),
    (torch.tensor(IDS, dtype=torch.int32), None),
    ({"prompt": TEXT}, TEXT),
    ({"prompt_token_ids": IDS}, None),
    ({"prompt_token_ids": torch.tensor(IDS), "prompt": TEXT}, TEXT),
    ({"prompt": TEXT, "multi_modal_data": None}, TEXT),
    ({"input_ids": IDS}, None),
    (BatchEncoding({"input_ids": IDS, "attention_mask": [1] * 5}), None),
    (BatchEncoding({"input_ids": torch.tensor([7, *IDS]), "attention_mask": [0, *[1] * 5]}), None),
]


@pytest.mark.parametrize(("given", "text"), FORMS, ids=lambda value: type(value).__name__)
def test_one_prompt(given: Any, text: str | None) -> None:
    """Every form gives the same ids, alone, in a list and for a stream; a text is kept."""
    [prompt], alone = split(given)
    assert alone and encoded(prompt, TOKENIZER) == (IDS, text)
    prompts, alone = split([given, given])
    assert not alone and [encoded(p, TOKENIZER) for p in prompts] == [(IDS, text)] * 2
    assert encoded(single(given), TOKENIZER) == (IDS, text)
    assert all(type(token) is int for token in encoded(prompt, TOKENIZER)[0])


@pytest.mark.parametrize(
    "given",
    [
        [TEXT, TEXT],
        (TEXT, IDS),
        [IDS, np.array(IDS)],
        np.array([IDS, IDS]),
        torch.tensor([IDS, IDS]),
        PADDED,
        BatchEncoding(PADDED),
        BatchEncoding({name: torch.tensor(rows) for name, rows in PADDED.items()}),
        BatchEncoding({name: np.array(rows) for name, rows in PADDED.items()}),
        BatchEncoding({"input_ids": [IDS, IDS]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_several_prompts(given: Any) -> None:
    """Lists, 2-D arrays, a tokenizer's batch without its padding."""
    prompts, alone = split(given)
    assert not alone and [encoded(p, TOKENIZER)[0] for p in prompts] == [IDS, IDS]


def test_none_at_all() -> None:
    """An empty list is no prompt; an empty prompt is one, for the engine to refuse."""
    assert split([]) == ([], False)
    for empty in ({"input_ids": []}, {"prompt_token_ids": []}, torch.tensor([], dtype=torch.int64)):
        [prompt], _ = split(empty)
        assert encoded(prompt, TOKENIZER)[0] == []


NO_CALLS = [
    None,
    5,
    True,
    1.5,
    b"bytes",
    bytearray(b"bytes"),
    memoryview(b"bytes"),
    {1, 2},
    (i for i in IDS),
    object(),
    str,
    np.array(3),
    torch.tensor(3),
    torch.zeros(1, 2, 3, dtype=torch.int64),
    {"input_ids": None},
    {"input_ids": b"ab"},
    {"input_ids": IDS, "pixel_values": [1]},
    {"input_ids": [IDS], "attention_mask": [[1, 1]]},
    {"input_ids": [IDS, IDS], "attention_mask": [[1] * 5]},
]


@pytest.mark.parametrize("given", NO_CALLS, ids=case_name)
def test_what_holds_no_prompts(pair: Pair, given: Any) -> None:
    """The call raises one sentence, whatever the other arguments are."""
    with pytest.raises(ForetokenError) as error:
        split(given)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


NO_PROMPTS = [
    None,
    5,
    True,
    b"bytes",
    [1, "a"],
    [1, None],
    [1, True],
    [1.0, 2.0],
    [True, False],
    [[1, 2]],
    [[]],
    {1, 2},
    object(),
    np.array([0.5]),
    np.array([True]),
    np.array([[1, 2]]),
    np.array(["a"]),
    torch.tensor([0.5]),
    torch.tensor([True]),
    {},
    {"text": "a"},
    {"prompt": 5},
    {"prompt": ["a"]},
    {"prompt": None},
    {"prompt_token_ids": "12"},
    {"prompt_token_ids": [1.5]},
    {"prompt": "a", "multi_modal_data": {"image": 1}},
    {"role": "user", "content": "hi"},
    {"input_ids": [[1], [2]]},
    {"input_ids": [0.5]},
    "half \ud800 a pair",
    [{"role": "user", "content": "hi"}],
]


def test_wrong_prompts_harm_no_others(pair: Pair) -> None:
    """Each comes back with one sentence of its own, on one line; the good ones are served."""
    llm = LLM(pair.target, tokenizer=ByteTokenizer(97))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    [good] = llm.generate([TEXT], params)
    outputs = llm.generate([TEXT, *NO_PROMPTS, TEXT], params)
    assert outputs[0].token_ids == outputs[-1].token_ids == good.token_ids
    for output, given in zip(outputs[1:-1], NO_PROMPTS, strict=True):
        said = str(output.error)
        assert output.outputs[0].token_ids == [] and said.endswith(".") and "\n" not in said, given
        assert said.isascii() or "…" in said
        assert output.prompt == (given if isinstance(given, str) else None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, "a"], r"A prompt is \[1, 'a'\]; give a text, token ids"),
        ({"role": "user", "content": "x"}, r"conversations go to chat\(\)"),
        ({"prompt": "a", "multi_modal_data": 1}, "'multi_modal_data', which isn't read"),
        ("a\ud800", r"holds '\\ud800' at place 1, half of a surrogate pair"),
        ("é", "^The tokenizer raised KeyError"),
    ],
)
def test_the_thing_is_named(given: Any, said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        encoded(given, ByteTokenizer(97))


@pytest.mark.parametrize("given", [[0.5], [[1]], 3, None, "12", [True]], ids=repr)
def test_a_tokenizer_of_other_ids(given: Any) -> None:
    """What it returns never reaches the model."""
    with pytest.raises(ForetokenError, match=r"^The tokenizer's input_ids of a text are"):
        encoded("a", lambda text: {"input_ids": given})


def test_a_stream_takes_one_prompt() -> None:
    for given, count in (([], 0), (["a", "b"], 2), (torch.tensor([IDS, IDS]), 2)):
        with pytest.raises(ForetokenError, match=f"One prompt is expected and {count} are given"):
            single(given)
    assert single(["a"]) == "a"


def test_sampling_params_of_other_types(pair: Pair) -> None:
    """They are the call's, and so is a count that differs."""
    llm = LLM(pair.target)
    for given in (5, "greedy", {"n": 1}, SamplingParams, [None], [{}]):
        with pytest.raises(ForetokenError, match=r"^sampling_params is .*; give SamplingParams"):
            llm.generate([[1]], given)  # type: ignore[arg-type]
    with pytest.raises(ForetokenError, match="2 prompts and 1 sampling_params"):
        llm.generate([[1], [2]], [SamplingParams()])


class Counting(ByteTokenizer):
    """Drops dots, takes a run of stars for one thing, and a bar with the spaces before it; notes
    how long the texts are that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.read.append(len(text))
        return super().encode(re.sub(r" *\|", "|", re.sub(r"\*+", "*", text.replace(".", ""))))


@pytest.mark.parametrize("unit", ["a", "ab..", "." * 11 + "a", "* "])
def test_of_a_text_that_is_far_too_long_the_beginning_is_read(unit: str) -> None:
    """Whose tokens are more than those that are of use."""
    tokenizer, text = Counting(), unit * 100_000
    ids = text_ids(text, tokenizer, most=100)
    assert 200 < len(ids) <= 5_000 and sum(tokenizer.read) < 20_000
    assert ids == text_ids(text, Counting())[: len(ids)]


@pytest.mark.parametrize(
    "text",
    ["a" * 100, "a" * 100_000, "." * 100_000 + "a", "*" * 100_000, " " * 100_000 + "|", "a*." * 99],
    ids=lambda text: text[:3],
)
def test_a_text_that_may_fit_is_read_whole(text: str) -> None:
    """However many characters it has: a long run of them may be few tokens, or none."""
    whole, bounded = text_ids(text, Counting()), text_ids(text, Counting(), most=100)
    assert bounded == whole if len(whole) <= 200 else len(bounded) > 200


def test_the_bound_holds_for_every_form_of_a_text() -> None:
    said = [{"role": "user", "content": "a" * 9_000}]
    for given in ("a" * 9_000, {"prompt": "a" * 9_000}, single(said)):
        assert len(encoded(given, ByteTokenizer())[0]) >= 9_000
        assert len(encoded(given, ByteTokenizer(), 100)[0]) == 1_200
    assert len(chat_ids(said, ByteTokenizer(), most=100)) == 1_200
    assert len(encoded([1] * 9_000, ByteTokenizer(), 100)[0]) == 9_000


# --- conversations ---

USER = {"role": "user", "content": "hi"}


def test_conversations() -> None:
    """One or several; the content may be a list of parts, which are written line by line."""
    assert split_conversations([USER])[1] and not split_conversations([[USER], [USER]])[1]
    assert split_conversations([]) == ([], False)
    plain = chat_ids([USER], TOKENIZER)
    assert TOKENIZER.decode(plain) == "user: hi\nassistant: "
    for content in ([{"type": "text", "text": "hi"}], ["hi"], [{"text": "hi"}]):
        assert chat_ids([{"role": "user", "content": content}], TOKENIZER) == plain
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert TOKENIZER.decode(chat_ids([{"role": "user", "content": two}], TOKENIZER)).startswith(
        "user: a\nb\n"
    )


def test_a_call_of_a_tool_needs_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """But a template that reads it: others would leave it out without a word."""
    call = {"type": "function", "function": {"name": "look"}}
    message = {"role": "assistant", "tool_calls": [call]}
    with pytest.raises(ForetokenError, match="doesn't read tool_calls"):
        chat_ids([message], TOKENIZER)
    monkeypatch.setattr(TOKENIZER, "chat_template", "{role}: {content} {tool_calls}")
    assert TOKENIZER.decode(chat_ids([message], TOKENIZER)).startswith("assistant: None")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "A conversation is None"),
        ("hi", "A conversation is 'hi'"),
        ([], r"A conversation is \[\]"),
        (USER, "A conversation is {'role'"),
        (["hi"], "Message 0 is 'hi'"),
        ([USER, {"content": "x"}], "Message 1 is {'content'"),
        ([{"role": 3, "content": "x"}], "Message 0 is"),
        ([USER, {"role": "user"}], "content of message 1 is None"),
        ([{"role": "user", "content": 5}], "content of message 0 is 5"),
        ([{"role": "user", "content": b"x"}], "content of message 0 is b'x'"),
        (
            [USER, {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            "part of message 1 is of type 'image_url'; only parts of text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "part of message 0 is {'type'"),
        ([{"role": "user", "content": [3]}], "part of message 0 is 3"),
        ([{"role": "user", "content": "a\ud800"}], "half of a surrogate pair"),
    ],
    ids=repr,
)
def test_messages_that_are_none(messages: Any, said: str) -> None:
    """The message is named by its place."""
    with pytest.raises(ForetokenError, match=said) as error:
        chat_ids(messages, TOKENIZER)
    assert "\n" not in str(error.value)


def test_one_wrong_conversation_of_two(pair: Pair) -> None:
    """It is that request's own error; what holds no messages is the call's."""
    llm = LLM(pair.target, tokenizer=ByteTokenizer(97))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    bad, good = llm.chat([[{"role": "user"}], [USER]], params)
    assert "content of message 0" in str(bad.error) and len(good.token_ids) == 3
    with pytest.raises(ForetokenError, match="content of message 0"):
        llm.chat([{"role": "user"}], params)
    for given in (None, 5, "hi", USER):
        with pytest.raises(ForetokenError, match=r"^messages is .*; give a list of messages"):
            llm.chat(given, params)  # type: ignore[arg-type]


class Sullen(list):  # type: ignore[type-arg]
    """Raises whenever it is read."""

    def __len__(self) -> int:
        raise KeyError("no\nlen")

    __iter__ = __getitem__ = __len__  # type: ignore[assignment]


@pytest.mark.parametrize("read", [split, split_conversations, single, lambda p: encoded(p, None)])
def test_what_raises_as_it_is_read(read: Any) -> None:
    """A user's own class, or an array without data: one sentence that names it."""
    with pytest.raises(ForetokenError, match=r"^A prompt is a value of type Sullen, and reading"):
        read(Sullen([1]))
    with pytest.raises(ForetokenError, match=r"value of type Tensor|messages is a value of type"):
        read(torch.empty(3, dtype=torch.long, device="meta"))[0].sort()
        encoded(torch.empty(3, dtype=torch.long, device="meta"), None)


def test_a_prompt_that_raises_is_its_own_error(pair: Pair) -> None:
    """Its neighbours are served."""
    with LLM(pair.target) as llm:
        outputs = llm.generate([[1, 2], Sullen([1]), [3]], SamplingParams(max_tokens=2))
        assert [output.error is None for output in outputs] == [True, False, True]
        assert "raised KeyError: 'no\\nlen'" in str(outputs[1].error)
