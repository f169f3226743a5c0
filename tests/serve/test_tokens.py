"""Texts to token ids and back."""

from __future__ import annotations

import threading
from typing import Any

import httpx

import json_tokenizer
from foretoken import LLM
from foretoken.testing import ByteTokenizer
from served import VOCAB, Served, serving, toy


class Watched(ByteTokenizer):
    """Remembers the threads on which it reads and writes texts."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.threads = set[str]()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return super().encode(text, add_special_tokens)

    def decode(self, token_ids: Any, *given: Any, **options: Any) -> str:
        self.threads.add(threading.current_thread().name)
        return super().decode(token_ids, *given, **options)


def test_no_text_is_read_on_the_event_loop() -> None:
    """Where a long one would keep all other clients waiting."""
    tokenizer = Watched()
    bodies: dict[str, Any] = {
        "/tokenize": {"prompt": "a b", "return_token_strs": True},
        "/detokenize": {"tokens": [1, 2]},
        "/v1/completions": {"prompt": "a b", "add_special_tokens": False, "max_tokens": 1},
    }
    with serving(toy(tokenizer=tokenizer)) as served:
        for path, body in bodies.items():
            tokenizer.threads.clear()
            assert httpx.post(served.url + path, json=body).status_code == 200
            assert tokenizer.threads, path
            assert not any(name.endswith("(run)") for name in tokenizer.threads), path


def test_there_and_back(http: httpx.Client, served: Served) -> None:
    told = http.post("/tokenize", json={"prompt": "a b", "return_token_strs": True}).json()
    assert told["token_strs"] == ["a", " ", "b"] and told["max_model_len"] == 256
    assert told["count"] == len(told["tokens"]) == 3
    back = http.post("/detokenize", json={"tokens": told["tokens"]}).json()
    assert back == {"prompt": "a b"}


def test_tokens_as_the_vocabulary_spells_them() -> None:
    """Also parts of a character, which have no text."""
    with serving(LLM(json_tokenizer.pair().target, tokenizer=json_tokenizer.tokenizer())) as served:
        body = {"prompt": "ab the €", "return_token_strs": True}
        told = httpx.post(f"{served.url}/tokenize", json=body).json()
    assert told["token_strs"] == ["ab", "Ġthe", "Ġ", "â", "Ĥ", "¬"]


def test_conversations(http: httpx.Client, served: Served) -> None:
    said = [{"role": "user", "content": "x"}]
    told = http.post("/tokenize", json={"messages": said}).json()
    assert told["tokens"] == served.llm.chat_prompt(said)
    body = {"messages": said, "add_generation_prompt": False}
    shorter = http.post("/tokenize", json=body).json()["tokens"]
    assert told["tokens"][: len(shorter)] == shorter and len(shorter) < told["count"]


class Opening(ByteTokenizer):
    """Begins a text with a special token unless it is told not to."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [self.eos_token_id] * add_special_tokens + self.encode(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def test_special_tokens_are_added_where_that_is_asked_for() -> None:
    """By default to texts only: a conversation's template writes its own."""
    said = [{"role": "user", "content": "x"}]
    with serving(toy(tokenizer=(tokenizer := Opening(VOCAB)))) as served:
        for given, default in ({"prompt": "a"}, True), ({"messages": said}, False):
            for special in (None, False, True):
                body = given | {"add_special_tokens": special}
                ids = httpx.post(f"{served.url}/tokenize", json=body).json()["tokens"]
                added = default if special is None else special
                assert (ids[0] == tokenizer.eos_token_id) == added, body


def test_prompts_of_answers_have_them_as_asked_for() -> None:
    """A text by default, a conversation only if that is asked for."""
    said = [{"role": "user", "content": "x"}]
    with serving(toy(tokenizer=(tokenizer := Opening(VOCAB)))) as served:
        for given, default in ({"prompt": "a"}, True), ({"messages": said}, False):
            route = "completions" if default else "chat/completions"
            for special in (None, not default):
                body = {"max_tokens": 1, "return_token_ids": True, "add_special_tokens": special}
                told = httpx.post(f"{served.url}/v1/{route}", json=body | given).json()
                ids = (told["choices"][0] if default else told)["prompt_token_ids"]
                added = default if special is None else special
                assert (ids[0] == tokenizer.eos_token_id) == added


def test_special_tokens_have_a_text(http: httpx.Client) -> None:
    told = http.post("/detokenize", json={"tokens": [65, VOCAB - 1]}).json()
    assert told == {"prompt": "a<eos>"}


def test_a_text_may_be_some_contexts_long(http: httpx.Client) -> None:
    """Whoever cuts texts to what fits counts longer ones; the longest are refused."""
    assert http.post("/tokenize", json={"prompt": "a" * 1024}).json()["count"] == 1024
    answer = http.post("/tokenize", json={"prompt": "a" * 1025})
    assert answer.status_code == 400 and "more than 1024 tokens" in answer.text
    assert len(http.post("/detokenize", json={"tokens": [65] * 1024}).json()["prompt"]) == 1024
    error = http.post("/detokenize", json={"tokens": [65] * 1025}).json()["error"]
    assert error["code"] == 400 and error["param"] == "tokens"


def test_refusals(http: httpx.Client) -> None:
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/detokenize", {"tokens": [257]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {}),
    ):
        answer = http.post(path, json=body)
        assert answer.status_code == 400 and answer.json()["error"]["message"]
