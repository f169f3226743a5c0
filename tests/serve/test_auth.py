"""Who may ask."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from foretoken.serve.auth import ApiKeys
from served import serving, toy


def test_keys() -> None:
    with serving(toy(), api_keys=("first", "second")) as served:
        url = f"{served.url}/v1"
        for key in ("first", "second"):
            assert OpenAI(base_url=url, api_key=key).models.list().data
        for key in ("third", "firs", "first1"):
            with pytest.raises(openai.AuthenticationError, match="API key"):
                OpenAI(base_url=url, api_key=key, max_retries=0).models.list()
        for path in ("/health", "/ping", "/version", "/metrics"):
            assert httpx.get(served.url + path).status_code == 200
        for path in ("/tokenize", "/reset_prefix_cache", "/v1/completions"):
            assert httpx.post(served.url + path).status_code == 401
        small = httpx.get(f"{url}/models", headers={"Authorization": "bearer  second"})
        assert small.status_code == 200  # it may be written so
        basic = httpx.get(f"{url}/models", headers={"Authorization": "Basic first"})
        assert basic.status_code == 401 and basic.headers["x-request-id"]


def test_paths_behind_a_proxy() -> None:
    """What it takes off them is put before them again, and they are open or not as without it."""
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def nothing(*_: Any) -> Any: ...

    paths = ["/llm/", "/llm/health", "/llm/metrics", "/llm/v1/models", "/llm/llm/health"]
    for path in paths:
        scope = {"type": "http", "method": "GET", "path": path, "root_path": "/llm", "headers": []}
        asyncio.run(ApiKeys(app, ("k",))(scope, nothing, nothing))
    assert reached == paths[:3]
