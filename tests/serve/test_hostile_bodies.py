"""Bodies made from the schemas and then spoilt: each is answered, or refused as clients expect."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from foretoken.serve.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from foretoken.serve.unserved import UNSERVED
from served import Served

BODIES = {
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/completions": (CompletionBody, {"prompt": "hi"}),
    "/tokenize": (TokenizeBody, {"prompt": "hi"}),
    "/detokenize": (DetokenizeBody, {"tokens": [1, 2]}),
}
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 20, 2**31, 2**63 - 1, 2**63, -(2**63), 10**40, 0.0, 0.5,
    -0.5, 1.0, 1e-320, 1e308, "", "a", "\x00", "\U0001f600", "token_id:1", "a" * 3000, [], [1],
    ["a"], [[]], [[1]], [None], {}, {"a": 1}, {"1": 1.0}, {"1": -1e6}, [{}], [-1], [257], [[257]],
    [{"role": "user", "content": "x"}], [{"role": 1}], [{"role": "x", "content": [{"text": 1}]}],
    {"include_usage": True}, {"type": "json_object"}, "auto", [[[[[[]]]]]],
]  # fmt: skip
PLAUSIBLE: dict[str, list[Any]] = {
    "model": ["toy", "other"],
    "n": [1, 2, 128],
    "temperature": [0, 0.3, 1e6],
    "top_p": [1e-9, 1],
    "top_k": [-1, 1, 2**62],
    "min_p": [0, 1],
    "repetition_penalty": [1e-6, 1e6],
    "presence_penalty": [-1e6, 1e6],
    "frequency_penalty": [-2, 2],
    "logit_bias": [{"1": 1e6}, {}],
    "allowed_token_ids": [[], [5], [5, 5]],
    "bad_words": [[], ["a"], ["\U0001f600"]],
    "seed": [0, -(2**63), 2**63 - 1],
    "stop": [[], "a", ["a", "\x00"] * 50],
    "stop_token_ids": [[0], [256]],
    "min_tokens": [0, 3],
    "prompt_logprobs": [0, 20],
    "stream": [True],
    "stream_options": [{"include_usage": True}],
    "request_id": ["r"],
    "echo": [True],
    "top_logprobs": [20],
    "max_completion_tokens": [1],
    "logprobs": [True, 0, 20],
    "chat_template_kwargs": [{}, {"x": [1]}, {"messages": []}],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "prompt": [[[1], [2]], ["a"] * 20, [0] * 200, "\U0001f600"],
}
SPOILT = [
    b"", b"{", b"null", b"[]", b'"a"', b"{}", b'{"prompt": NaN}', b'{"a":1}' * 2, b"\xff\xfe{}",
    b'{"prompt":"\\ud800"}', b"[" * 5000, b'{"a":' * 5000, b'{"n":' + b"9" * 5000 + b"}",
    b'{"prompt":"a","prompt":"b","max_tokens":1}', b'{"prompt":"a","max_tokens":-0}',
]  # fmt: skip


def spoilt(chance: random.Random) -> tuple[str, bytes]:
    """A path, and a body for it in which one to four fields have other values, every fourth
    an odd one."""
    path = chance.choice(list(BODIES))
    kind, sound = BODIES[path]
    unserved = [name for names in UNSERVED for name in names.split()]
    names = [*kind.model_fields] * 3 + unserved + ["nonsense"]
    known = [name for name in PLAUSIBLE if name in kind.model_fields]
    body: dict[str, Any] = dict(sound)
    if "completions" in path:
        body["max_tokens"] = 3
    for _ in range(chance.randint(1, 4)):
        if known and chance.random() < 0.75:
            name = chance.choice(known)
            body[name] = chance.choice(PLAUSIBLE[name])
        else:
            body[chance.choice(names)] = chance.choice(ODD)
    return path, json.dumps(body).encode()


def is_sound(answer: httpx.Response) -> bool:
    """Whether it is an answer, or an error as clients read them."""
    if answer.status_code == 200:
        return "error" not in answer.text[:20]
    error = answer.json()["error"]
    texts = isinstance(error["message"], str) and isinstance(error["type"], str)
    official = set(error) == {"message", "type", "param", "code"}
    return 400 <= answer.status_code < 500 and texts and official and bool(error["message"])


@pytest.mark.parametrize("seed", range(4))
def test_bodies(http: httpx.Client, served: Served, seed: int) -> None:
    chance = random.Random(seed)
    fine = 0
    for _ in range(80):
        path, body = spoilt(chance)
        headers = {"Content-Type": "application/json"}
        answer = http.post(path, content=body, headers=headers, timeout=20)
        assert is_sound(answer), (path, body[:500], answer.status_code, answer.text[:500])
        fine += answer.status_code == 200
    assert 10 < fine < 70  # both sides are seen
    still_well(http, served)


def test_what_is_no_json(http: httpx.Client, served: Served) -> None:
    for path in BODIES:
        for body in SPOILT:
            headers = {"Content-Type": "application/json"}
            assert is_sound(http.post(path, content=body, headers=headers)), (path, body[:80])
    still_well(http, served)


def test_more_than_anyone_needs(http: httpx.Client, served: Served) -> None:
    """It is refused by its number, before the pairs or the functions are looked at."""
    tool = {"type": "function", "function": {"name": "f"}}
    for field, many in (
        ("logit_bias", {str(token): 1 for token in range(10_001)}),
        ("tools", [tool] * 1024 + [3] * 200_000),
    ):
        body = {"messages": [{"role": "user", "content": "hi"}], field: many}
        answer = http.post("/v1/chat/completions", json=body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == field, error
        assert "10,000" in error["message"] or "1024" in error["message"]
    still_well(http, served)


def still_well(http: httpx.Client, served: Served) -> None:
    assert http.get("/health").status_code == 200
    assert not served.llm.worker.call(lambda engine: engine.busy)
    assert http.get("/load").json()["server_load"] == 0
    answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 4, "seed": 1})
    assert answer.json()["choices"][0]["text"] is not None
