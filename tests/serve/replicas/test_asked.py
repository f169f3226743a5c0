"""Requests on their way: their seeds, and what routers compare."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from foretoken.serve.errors import ApiError
from foretoken.serve.replicas.asked import Asked, asked


def _asked(body: Any, path: str = "/v1/completions", most: int = 10**6) -> Asked:
    raw = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    request = Request({**scope, "query_string": b"a=1", "root_path": ""}, receive)
    return asyncio.run(asked(request, most, lambda: 77))


@pytest.mark.parametrize(
    ("body", "seed"),
    [
        ({"prompt": "a"}, 77),
        ({"prompt": "a", "seed": None}, 77),
        ({"prompt": "a", "seed": -1}, 77),
        ({"prompt": ["a"]}, 77),
        ({"prompt": [1, 2]}, 77),
        ({"prompt": "a", "seed": 0}, 0),
        ({"prompt": ["a", "a"]}, None),
        ({"prompt": [[1], [1]]}, None),
    ],
)
def test_one_prompt_gets_a_seed(body: dict[str, Any], seed: int | None) -> None:
    given = json.loads(_asked(body).body)
    assert given.pop("seed", None) == seed
    assert given == {name: value for name, value in body.items() if name != "seed"}


def test_other_paths_are_left_alone() -> None:
    assert json.loads(_asked({"prompt": "a"}, "/tokenize").body) == {"prompt": "a"}
    scope = _asked({}, "/tokenize").scope()
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/tokenize", b"a=1")


def test_the_next_turn_begins_as_the_last_one() -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    one, two = (_asked({"messages": turns[:n]}, "/v1/chat/completions").text for n in (1, 2))
    assert two.startswith(one[:-1])
    salted = _asked({"messages": turns, "cache_salt": "s"}, "/v1/chat/completions").text
    assert not salted.startswith(one[:8])  # its caches have nothing in common with the others'


def test_too_long_a_body() -> None:
    with pytest.raises(ApiError, match="longer than 10 bytes"):
        _asked({"prompt": "long enough"}, most=10)
