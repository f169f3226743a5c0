"""Blocks in answers, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from foretoken.engine.outputs import CompletionOutput, Draft
from foretoken.serve.blocks import Blocks
from foretoken.serve.schema import CompletionBody, Extras
from foretoken.testing import ByteTokenizer
from served import VOCAB, Served, Spaced

SAID = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"messages": SAID, "seed": 5, "max_tokens": 24, "temperature": 0}
TEXT: dict[str, Any] = {"prompt": "hello", "seed": 5, "max_tokens": 24, "temperature": 0}
ROUTES = {"chat/completions": CHAT, "completions": TEXT}
ASKED = {"foretoken": {"blocks": True}}


def streamed(http: httpx.Client, route: str, body: dict[str, Any]) -> list[Any]:
    answer = http.post(f"/v1/{route}", json=body | {"stream": True})
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]


def content(choice: Any) -> str:
    part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
    return part["content"] or ""


@pytest.mark.parametrize("route", ROUTES)
def test_blocks_of_a_stream_are_its_text(http: httpx.Client, route: str) -> None:
    choices = streamed(http, route, ROUTES[route] | ASKED)
    blocks = [b for choice in choices for b in choice.get("foretoken", {}).get("blocks", [])]
    tokens = [token for block in blocks for token in block["tokens"]]
    assert "".join(tokens) == "".join(map(content, choices))
    assert len(tokens) == 24 > len(blocks)
    for block in blocks:
        kept = [node["text"] for node in block["draft"] if node["accepted"]]
        assert len(kept) == block["accepted"] <= len(block["tokens"])
        assert [node["parent"] for node in block["draft"]] == list(range(len(block["draft"])))
    assert any(not node["accepted"] for block in blocks for node in block["draft"])


@pytest.mark.parametrize("route", ROUTES)
def test_a_whole_answer_has_the_same_blocks(http: httpx.Client, route: str) -> None:
    whole = http.post(f"/v1/{route}", json=ROUTES[route] | ASKED).json()["choices"][0]
    choices = streamed(http, route, ROUTES[route] | ASKED)
    blocks = [b for choice in choices for b in choice.get("foretoken", {}).get("blocks", [])]
    for block in whole["foretoken"]["blocks"] + blocks:
        assert block.pop("ms") > 0
    assert whole["foretoken"]["blocks"] == blocks
    assert "".join(map(content, choices)) == content(whole)


def test_each_sample_has_its_own(http: httpx.Client) -> None:
    body = CHAT | ASKED | {"n": 2, "temperature": 1}
    first, second = http.post("/v1/chat/completions", json=body).json()["choices"]
    for choice in (first, second):
        tokens = [token for b in choice["foretoken"]["blocks"] for token in b["tokens"]]
        assert "".join(tokens) == content(choice)
    assert content(first) != content(second)


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_told_unasked(http: httpx.Client, route: str) -> None:
    for body in ({}, {"foretoken": {}}, {"foretoken": {"blocks": False}}):
        assert all(
            "foretoken" not in choice for choice in streamed(http, route, ROUTES[route] | body)
        )


@pytest.mark.parametrize("wrong", [{"block": True}, {"blocks": 1}, True])
def test_what_is_wrong_is_refused(http: httpx.Client, wrong: Any) -> None:
    answer = http.post("/v1/chat/completions", json=CHAT | {"foretoken": wrong})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "foretoken"


def test_plain_decoding_for_one_request(http: httpx.Client, served: Served) -> None:
    body = CHAT | ASKED
    drafted = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    plain = http.post("/v1/chat/completions", json=body | {"max_draft_tokens": 0}).json()
    [choice] = plain["choices"]
    assert content(choice) == content(drafted)
    blocks = choice["foretoken"]["blocks"]
    assert [len(block["tokens"]) for block in blocks] == [1] * 24
    assert all(block["draft"] == [] and block["accepted"] == 0 for block in blocks)
    assert plain["metrics"]["speculative_decoding"] is None
    assert served.llm.method == "sps"


def told(sample: CompletionOutput, **fields: Any) -> Any:
    """The blocks of a sample after a text."""
    body = CompletionBody.model_validate({"prompt": "a", **ASKED, **fields})
    blocks = Blocks(Spaced(VOCAB), body).more(0, sample, [7])
    return blocks["foretoken"]["blocks"]


def test_a_block_that_was_cut_has_no_token_of_the_model() -> None:
    """What was accepted is told of the path, and not of how much was written."""
    drafts = [Draft([5, 6, 9], [0, 1, 1], [1, 2], 2, 0.1), Draft([], [], [], 1, 0.2)]
    sample = CompletionOutput(0, " 5 6 4", [5, 6, 4], finish_reason="length", drafts=drafts)
    first, second = told(sample)
    assert (first["accepted"], first["tokens"], second["tokens"]) == (2, [" 5", " 6"], [" 4"])
    assert [node["accepted"] for node in first["draft"]] == [True, True, False]


@pytest.mark.parametrize("skipped", [True, False])
def test_special_tokens_of_a_block_are_those_of_the_text(skipped: bool) -> None:
    tokenizer = ByteTokenizer(VOCAB)
    body = CompletionBody(prompt="a", skip_special_tokens=skipped, foretoken=Extras(blocks=True))
    sample = CompletionOutput(0, "a", [65, VOCAB - 1], drafts=[Draft([], [], [], 2, 0.1)])
    [block] = Blocks(tokenizer, body).more(0, sample, ())["foretoken"]["blocks"]
    assert block["tokens"] == ["a", "" if skipped else "<eos>"]
