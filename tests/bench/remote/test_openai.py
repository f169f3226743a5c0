"""A request to a server with the OpenAI interface: what is sent, and what is refused."""

from __future__ import annotations

import json

import pytest

from fake_server import PROMPT, plan, serving
from foretoken.bench.plan import Unit
from foretoken.bench.remote import openai
from foretoken.bench.remote.openai import Endpoint
from foretoken.bench.remote.runner import RemoteRunner
from foretoken.errors import ForetokenError


def test_request_says_all_that_sampling_needs() -> None:
    """Temperature, limit (the prompt's own if it is lower), seed, stop, usage, all messages."""
    with serving() as (fake, endpoint):
        runner = RemoteRunner(plan(temperatures=(0.5,)), endpoint)
        runner.serve(Unit((PROMPT,), 1, 0.5))
    [asked] = fake.asked
    seed = asked.pop("seed")
    assert isinstance(seed, int)
    assert asked == {
        "path": "/v1/chat/completions",
        "model": "m",
        "temperature": 0.5,
        "max_tokens": 50,
        "stop": ["\n\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How far?"},
        ],
    }


@pytest.mark.parametrize(
    ("url", "model", "message"),
    [
        ("localhost:8000", "m", "http://localhost:8000/v1"),
        ("http://localhost:many", "m", "http://localhost:8000/v1"),
        ("http://127.0.0.1:9", "m", "No server answers at http://127.0.0.1:9"),
        (None, "n", "Unknown model of .* 'n'"),
    ],
)
def test_a_server_that_cannot_be_measured(url: str | None, model: str, message: str) -> None:
    """Is refused before anything is asked of it."""
    with serving() as (_, endpoint), pytest.raises(ForetokenError, match=message):
        RemoteRunner(plan(), Endpoint(url or endpoint.base_url, model))


def test_the_key_is_sent_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor a password in the address."""
    monkeypatch.setenv(openai.KEY, "secret")
    with serving() as (fake, endpoint):
        url = endpoint.base_url.replace("//", "//user:secret@", 1)
        runner = RemoteRunner(plan(), Endpoint(url, "m"))
        [answer] = runner.serve(Unit((PROMPT,), 1, 0.0))
    assert fake.keys == ["Bearer secret"]
    assert "secret" not in answer.line() + json.dumps(runner.target)
