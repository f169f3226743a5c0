"""Texts to token ids and back."""

from __future__ import annotations

import httpx

from served import Served


def test_there_and_back(http: httpx.Client, served: Served) -> None:
    told = http.post("/tokenize", json={"prompt": "a b", "return_token_strs": True}).json()
    assert told["token_strs"] == ["a", " ", "b"] and told["max_model_len"] == 256
    assert told["count"] == len(told["tokens"]) == 3
    back = http.post("/detokenize", json={"tokens": told["tokens"]}).json()
    assert back == {"prompt": "a b"}


def test_conversations(http: httpx.Client, served: Served) -> None:
    said = [{"role": "user", "content": "x"}]
    told = http.post("/tokenize", json={"messages": said}).json()
    assert told["tokens"] == served.llm.chat_prompt(said)
    body = {"messages": said, "add_generation_prompt": False}
    shorter = http.post("/tokenize", json=body).json()["tokens"]
    assert told["tokens"][: len(shorter)] == shorter and len(shorter) < told["count"]


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
