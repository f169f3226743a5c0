"""A request to a server with the OpenAI interface: what is sent, and what is refused."""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from fake_server import ADDRESS, PARAMS, PROMPT, answering, asked, head, plan, serving, vllm
from foretoken.bench.plan import Unit
from foretoken.bench.remote import address, openai
from foretoken.bench.remote.connection import Limits, Unanswered
from foretoken.bench.remote.openai import Endpoint, Reply
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
    monkeypatch.setenv(address.KEY, "secret")
    with serving() as (fake, endpoint):
        url = endpoint.base_url.replace("//", "//user:secret@", 1)
        runner = RemoteRunner(plan(), Endpoint(url, "m"))
        [answer] = runner.serve(Unit((PROMPT,), 1, 0.0))
    assert fake.keys == ["Bearer secret"]
    assert "secret" not in answer.line() + json.dumps(runner.target)


def test_a_refusal_is_read_in_part() -> None:
    """Its first lines say why."""

    def refuse(to: BaseHTTPRequestHandler) -> None:
        head(to, 413, Content_Length="99999999999")
        while True:
            to.wfile.write(b"too large " * 6000)

    with answering(refuse) as url:
        error = asked(url).error
    assert error is not None and re.match(ADDRESS + "answered with status 413: too large", error)
    assert len(error) < 400


@pytest.mark.parametrize(
    "models",
    [
        b"[" * 100_000,
        b"\xff",
        b'{"data": []}',
        b'{"data": [{"id": "m", "max_model_len": "300"}]}',
        b'{"data": [{"id": "m", "max_model_len": -1}, {"id": 5}]}',
        b'{"data": [{"id": {}}, "m"]}',
    ],
    ids=["deep", "bytes", "none", "text", "negative", "strange"],
)
def test_a_list_of_models_that_says_nothing(models: bytes) -> None:
    """No context is known from it, and no prompt is left out."""

    def listed(to: BaseHTTPRequestHandler) -> None:
        head(to)
        to.wfile.write(models)

    with answering(listed, models=False) as url:
        runner = RemoteRunner(plan(), Endpoint(url, "m"))
    assert runner.context is None


def test_a_long_list_of_models_is_told_in_part() -> None:
    """The names nearest to the wanted one."""

    def listed(to: BaseHTTPRequestHandler) -> None:
        head(to)
        names = [f"model-{i}" for i in range(300)] + ["nearly", "x" * 10_000]
        to.wfile.write(json.dumps({"data": [{"id": name} for name in names]}).encode())

    with answering(listed, models=False) as url, pytest.raises(ForetokenError) as raised:
        Endpoint(url, "neatly").model_info()
    assert "Did you mean 'nearly'?" in str(raised.value)
    assert len(str(raised.value)) < 1500


def test_events_of_an_answer() -> None:
    """Reasoning is counted and timed and is no part of the text; the last event with something in
    it ends the answer; counts stay where a later event has others."""
    reply = Reply()
    events: list[tuple[float, dict[str, object]]] = [
        (1.0, {"choices": [{"delta": {"reasoning": "Hm. "}}]}),
        (2.0, {"choices": [{"delta": {"content": "Yes"}}], "usage": {"completion_tokens": 3}}),
        (3.0, {"choices": [{"delta": {}, "finish_reason": "stop"}]}),
        (4.0, {"choices": [], "usage": {"prompt_tokens": 5}}),
    ]
    for now, event in events:
        reply.read(json.dumps(event).encode(), now)
    assert (reply.pieces, reply.contents, reply.arrivals) == (["Hm. ", "Yes"], ["", "Yes"], [1, 2])
    assert (reply.ended, reply.tokens, reply.prompt_tokens) == (3.0, 3, 5)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused(status: int) -> None:
    """Is told as that, and not as a server without models."""
    with (
        answering(lambda to: head(to, status), models=False) as url,
        pytest.raises(ForetokenError, match="refuses the key; put the right one into OPENAI_API"),
    ):
        Endpoint(url, "m").model_info()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"message": "too long"}', "too long"),
        ('{"error": "too long"}', "too long"),
        ('{"error": {"code": 5}}', "{'code': 5}"),
        ("[" * 70_000, "[[["),
        ("\udcff", "\ufffd"),
        ("", "Bad Request"),
    ],
    ids=["message", "error", "code", "deep", "bytes", "nothing"],
)
def test_where_a_refusal_says_why(body: str, told: str) -> None:
    """Servers differ; one that says nothing has its status told in words."""

    def refuse(to: BaseHTTPRequestHandler) -> None:
        head(to, 400)
        to.wfile.write(body.encode(errors="surrogateescape"))

    with answering(refuse) as url:
        error = asked(url).error
    assert error is not None and f"answered with status 400: {told}" in error


def test_without_words_that_end_it_none_are_sent() -> None:
    """Not an empty list, which some servers refuse."""
    with serving() as (fake, endpoint):
        assert endpoint.ask([{"role": "user", "content": "?"}], PARAMS).error is None
    assert "stop" not in fake.asked[0]


def test_a_look_takes_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an answer may take, and less where that may take less."""
    limits: list[tuple[float, float]] = []

    def connected(where: Any, given: Limits) -> Any:
        limits.append((given.wait, given.total))
        raise Unanswered("is away")

    monkeypatch.setattr(openai, "connected", connected)
    url = "http://127.0.0.1:9"
    for endpoint in (Endpoint(url, "m"), Endpoint(url, "m", timeout=5.0, total=7.0)):
        assert endpoint.counters() == {}
    assert limits == [(60.0, 60.0), (5.0, 7.0)]


def test_counters_of_a_server_that_is_not_well() -> None:
    """Aren't taken for its counters of now."""

    def fail(to: BaseHTTPRequestHandler) -> None:
        head(to, 503)
        to.wfile.write(vllm(1).encode())

    with answering(fail, models=False) as url:
        assert Endpoint(url, "m").counters() == {}
