"""Prompts and conversations: every Python type, bad ids, bad texts, in every verb."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch

from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import GREEDY, METHODS, VOCAB, Stand, byte_tokenizer
from hostile_inputs.values import NOT_NUMBERS, VALUES, Make, Raises, kind

IDS = [5, 9, 2, 5, 9]
NAMES = ("prompt", "token", "text", "message", "conversation", "chat")
WHOLE = ("int8", "uint8", "int16", "int32", "int64")

GOOD: dict[str, Make] = {
    "a tuple": lambda: tuple(IDS),
    "a dict with prompt": lambda: {"prompt": "hello"},
    "a dict with prompt_token_ids": lambda: {"prompt_token_ids": list(IDS)},
    "a list of np.int64": lambda: list(np.array(IDS)),
    "BatchEncoding": lambda: batch_encoding({"input_ids": list(IDS)}),
    **{f"np.{t}": lambda t=t: np.array(IDS, t) for t in WHOLE},  # type: ignore[misc]
    **{f"torch.{t}": lambda t=t: torch.tensor(IDS, dtype=getattr(torch, t)) for t in WHOLE},  # type: ignore[misc]
}
"""Prompts as users bring them: each is served, and read as it is meant."""

EITHER: dict[str, Make] = {
    "array.array": lambda: array.array("i", IDS),
    "range": lambda: range(5),
    "np.uint64": lambda: np.array(IDS, np.uint64),
    "torch [1, L]": lambda: torch.tensor([IDS]),
    "np [1, L]": lambda: np.array([IDS]),
    "BatchEncoding of tensors": lambda: batch_encoding({"input_ids": torch.tensor([IDS])}),
    "BatchEncoding of two": lambda: batch_encoding({"input_ids": [IDS, IDS]}),
    "a str subclass": lambda: type("Text", (str,), {})("hello"),
    "a list subclass": lambda: type("Ids", (list,), {})(IDS),
    "whole floats": lambda: [5.0, 9.0],
    "a dict with both": lambda: {"prompt": "hello", "prompt_token_ids": IDS},
    "a dict with multi_modal_data": lambda: {"prompt": "a", "multi_modal_data": {"image": 1}},
    "non-strided": lambda: np.array(IDS * 2)[::2],
    "torch with grad": lambda: torch.tensor([5.0, 9.0], requires_grad=True),
    "a view of np": lambda: np.array(IDS)[::-1],
    "accents": lambda: "häßlich €uro",
    "emoji": lambda: "\U0001f600" * 20,
    "right to left": lambda: "\u202eabc\u202c",
    "control characters": lambda: "".join(map(chr, range(32))),
    "NUL": lambda: "a\x00b",
    "escapes": lambda: "\x1b[2J\x1b[31mred",
    "zero width": lambda: "\u200b" * 50,
    "combining": lambda: "e" + "\u0301" * 100,
    "spaces": lambda: " " * 100,
    "all of the context but one": lambda: [5] * 255,
}
"""Prompts that may be served or refused, but not mistaken."""

BAD: dict[str, Make] = {
    "no ids": list,
    "an empty tuple": tuple,
    "an id too high": lambda: [1, VOCAB],
    "a negative id": lambda: [1, -1],
    "a huge id": lambda: [1, 10**30],
    "an id of 2**63": lambda: [1, 2**63],
    "a bool id": lambda: [1, True],
    "a half id": lambda: [1, 1.5],
    "a NaN id": lambda: [1, float("nan")],
    "an infinite id": lambda: [1, float("inf")],
    "a None id": lambda: [1, None],
    "a str id": lambda: [1, "2"],
    "a list id": lambda: [1, [2]],
    "a bytes id": lambda: [1, b"a"],
    "an object id": lambda: [1, object()],
    "a np.float id": lambda: [1, np.float32(1.5)],
    "a raising id": lambda: [1, Raises("repr")],
    "more than the context": lambda: [5] * 300,
    "ten million ids": lambda: [5] * 10_000_000,
    "a text that is too long": lambda: "a" * 1_000_000,
    "None": lambda: None,
    "True": lambda: True,
    "3.5": lambda: 3.5,
    "bytes": lambda: b"hello",
    "object()": object,
    "a set": lambda: {1, 2},
    "a function": lambda: print,
    "np.float32": lambda: np.array(IDS, np.float32) + 0.5,
    "np.bool_": lambda: np.array([True, False]),
    "np.complex64": lambda: np.array(IDS, np.complex64),
    "np of str": lambda: np.array(["a", "b"]),
    "np of objects": lambda: np.array([None, 1], object),
    "np of dates": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "np [0]": lambda: np.array([], np.int64),
    "np [2, 2]": lambda: np.array([[1, 2], [3, 4]]),
    "np [1, 1, 2]": lambda: np.array([[[1, 2]]]),
    "torch.float16": lambda: torch.tensor([0.5, 1.5], dtype=torch.float16),
    "torch.bfloat16": lambda: torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
    "torch.float64": lambda: torch.tensor([0.5]),
    "torch.bool": lambda: torch.tensor([True]),
    "torch.complex64": lambda: torch.tensor([1j]),
    "torch [0]": lambda: torch.tensor([], dtype=torch.long),
    "torch [2, 2]": lambda: torch.tensor([[1, 2], [3, 4]]),
    "torch.meta": lambda: torch.empty(3, dtype=torch.long, device="meta"),
    "torch.quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "torch negative": lambda: torch.tensor([-1, 5]),
    "an empty dict": dict,
    "a dict of nothing known": lambda: {"text": "hello"},
    "a dict with prompt None": lambda: {"prompt": None},
    "a dict with prompt 5": lambda: {"prompt": 5},
    "a dict with bad ids": lambda: {"prompt_token_ids": ["a"]},
    "a dict with a dict": lambda: {"prompt": {"prompt": "a"}},
    "a BatchEncoding of nothing": lambda: batch_encoding({}),
    "a lone surrogate": lambda: "a\ud800b",
    "nested ids": lambda: [[1, 2], [3]],
    "raises on len": lambda: Raises("len"),
    "raises on iter": lambda: Raises("iter"),
}
"""Prompts that make no sense: each is refused."""

TALKS: dict[str, Make] = {
    "no messages": list,
    "None": lambda: None,
    "5": lambda: 5,
    "a string": lambda: "hi",
    "a message alone": lambda: {"role": "user", "content": "hi"},
    "no role": lambda: [{"content": "hi"}],
    "no content": lambda: [{"role": "user"}],
    "a role of None": lambda: [{"role": None, "content": "hi"}],
    "an empty role": lambda: [{"role": "", "content": "hi"}],
    "a role of 5": lambda: [{"role": 5, "content": "hi"}],
    "a content of None": lambda: [{"role": "user", "content": None}],
    "a content of 5": lambda: [{"role": "user", "content": 5}],
    "a content of bytes": lambda: [{"role": "user", "content": b"hi"}],
    "a content of a list": lambda: [{"role": "user", "content": ["hi"]}],
    "a content of an image": lambda: [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    ],
    "a part without text": lambda: [{"role": "user", "content": [{"type": "text"}]}],
    "a part of 5": lambda: [{"role": "user", "content": [5]}],
    "a message of None": lambda: [None],
    "a message of 5": lambda: [5],
    "a message of a list": lambda: [["role", "user"]],
    "a message after a good one": lambda: [{"role": "user", "content": "hi"}, 5],
    "a talk of None beside a good one": lambda: [[{"role": "user", "content": "hi"}], None],
    "a talk with None": lambda: [[{"role": "user", "content": "hi"}, None]],
    "a surrogate": lambda: [{"role": "user", "content": "\udfff"}],
    "a surrogate role": lambda: [{"role": "\udfff", "content": "hi"}],
    "template code": lambda: [{"role": "user", "content": "{{ 1 / 0 }}{% endfor %}"}],
    "too long": lambda: [{"role": "user", "content": "a" * 5000}],
    "ten thousand messages": lambda: [{"role": "user", "content": "a"}] * 10_000,
    "keys of 5": lambda: [{5: 6}],
    "extra keys": lambda: [{"role": "user", "content": "hi", "name": object()}],
    "a content that raises": lambda: [{"role": "user", "content": Raises("repr")}],
    "bytes": lambda: b"hi",
    "a generator": lambda: (m for m in [{"role": "user", "content": "hi"}]),
    "np": lambda: np.array([1, 2]),
}
"""Conversations; none of them is good."""

PARTS = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def batch_encoding(data: dict[str, Any]) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding(data)


def cases(random: Random, count: int) -> Iterator[Case]:
    """The prompts of each kind in random verbs, until there are `count`."""
    every = list(_every())
    random.shuffle(every)
    while len(every) < count:
        every += every
    for label, make, must, verbs in every[:count]:
        verb, method = random.choice(verbs), random.choice(METHODS)
        bytewise = verb != "together" and random.random() < 0.2
        yield _case(label, make, must, verb, method, bytewise)


def _every() -> Iterator[tuple[str, Make, str, list[str]]]:
    prompts, talks = ["generate", "together", "stream"], ["chat", "stream_chat"]
    for label, make in BAD.items():
        yield from ((label, make, "refuse", [verb]) for verb in ("together", "stream"))
    for label, make in GOOD.items():
        yield label, make, "serve", prompts
    for label, make in EITHER.items():
        yield label, make, "", prompts
    for label, make in VALUES.items():
        yield label, make, "", prompts
    for label, make in TALKS.items():
        yield label, make, "", talks
    for label, make in NOT_NUMBERS.items():
        yield f"a content of {label}", partial(_content, make), "", talks
    yield "parts of text", lambda: PARTS, "serve", talks


def _content(make: Make) -> Any:
    return [{"role": "user", "content": make()}]


def _case(label: str, make: Make, must: str, verb: str, method: str, bytewise: bool) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        value = make()
        if bytewise:
            with stand.new(method, tokenizer=byte_tokenizer()) as llm:
                outputs = outcome.attempt(partial(VERBS[verb], stand, llm, value, outcome))
        else:
            llm = stand.llm(method)
            with stand.neighbour(llm, outcome):
                outputs = outcome.attempt(partial(VERBS[verb], stand, llm, value, outcome))
        stand.note(outputs or [], outcome)
        if label in GOOD and outputs and outputs[0].error is None:
            _check_ids(outputs[0].prompt_token_ids, label, outcome)

    names = (*NAMES, kind(make()))
    tokenizer = ", bytes" if bytewise else ""
    return Case(f"{verb}({shown(label)}), {method}{tokenizer}", run, names, must)


def _check_ids(ids: list[int], label: str, outcome: Outcome) -> None:
    text = label == "a dict with prompt"
    if not text and [int(i) for i in ids] != IDS:
        outcome.blame("wrong", f"it was read as {ids}")


def _generate(stand: Stand, llm: Any, value: Any, outcome: Outcome) -> Any:
    return llm.generate(value, GREEDY)


def _together(stand: Stand, llm: Any, value: Any, outcome: Outcome) -> Any:
    return stand.together(llm, [value], [GREEDY], outcome) and []


def _stream(stand: Stand, llm: Any, value: Any, outcome: Outcome) -> Any:
    return list(llm.stream(value, GREEDY))[-1:]


def _chat(stand: Stand, llm: Any, value: Any, outcome: Outcome) -> Any:
    return llm.chat(value, GREEDY)


VERBS: dict[str, Callable[[Stand, Any, Any, Outcome], Any]] = {
    "generate": _generate,
    "together": _together,
    "stream": _stream,
    "chat": _chat,
    "stream_chat": _stream,
}
