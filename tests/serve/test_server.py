"""Requests on their way into the engine, and many at a time."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from foretoken import AsyncLLM, SamplingParams
from foretoken.engine.engine import Engine
from foretoken.engine.outputs import CompletionOutput, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.serve.errors import ApiError
from foretoken.serve.server import Server, checked
from foretoken.serve.settings import ServerSettings
from foretoken.testing import ByteTokenizer
from served import VOCAB, Served, serving, toy


def test_the_text_of_a_seed_whoever_else_asks(served: Served) -> None:
    """Eight clients at four slots, temperatures mixed; an engine of its own is the reference."""
    jobs = [(f"text {i}", i, 0.0 if i % 3 == 0 else 0.8) for i in range(16)]
    with toy() as alone:
        expected = [
            alone.generate(prompt, SamplingParams(seed=s, temperature=t, max_tokens=30))[0].text
            for prompt, s, t in jobs
        ]

    def ask(job: tuple[str, int, float]) -> str:
        prompt, seed, temperature = job
        body = {"prompt": prompt, "seed": seed, "temperature": temperature, "max_tokens": 30}
        url = f"{served.url}/v1/completions"
        text: str = httpx.post(url, json=body, timeout=30).json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, jobs)) == expected


def test_what_failed_is_told() -> None:
    sample = CompletionOutput(0, finish_reason="error")
    output = RequestOutput(0, None, [1], [sample], RequestStats(), error="It broke.")
    for wrong, busy, status in ((False, False, 500), (True, False, 400), (False, True, 503)):
        output.wrong_grammar, output.overloaded = wrong, busy
        with pytest.raises(ApiError, match="It broke") as caught:
            checked(output)
        assert caught.value.status == status
        assert ("Retry-After" in caught.value.headers) == busy
    sample.finish_reason, output.error = "cancelled", None
    for samples in ([sample], [CompletionOutput(1, finish_reason="length"), sample]):
        output.outputs = samples
        with pytest.raises(ApiError) as caught:
            checked(output)
        assert caught.value.status == 503


@pytest.mark.parametrize("more", [{}, {"structured_outputs": {"regex": "a+"}}], ids=len)
def test_an_engine_that_breaks_is_no_bad_request(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Not even to a client whose request it hadn't begun, nor to one whose text is constrained."""
    if more:
        pytest.importorskip("llguidance")

    def broken(engine: Engine, *given: object) -> Any:
        raise LookupError("inside")

    with serving(toy()) as server:
        monkeypatch.setattr(Engine, "step", broken)
        monkeypatch.setattr(Engine, "fail_all", broken)
        body = {"prompt": "a", "max_tokens": 4, **more}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
        monkeypatch.undo()
        assert answer.status_code == 500, answer.text
        assert "has stopped" in answer.json()["error"]["message"]
        assert httpx.get(f"{server.url}/health").status_code == 503


class Counting(ByteTokenizer):
    """Notes how long the texts are that it reads."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.read: list[int] = []

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.read.append(len(text))
        return super().encode(text)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("v1/completions", {"prompt": "a" * 1_000_000}),
        ("v1/completions", {"prompt": "a" * 1_000_000, "add_special_tokens": False}),
        ("v1/completions", {"prompt": ["a", "a" * 1_000_000]}),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}),
        ("v1/completions", {"prompt": [1] * 100_000}),
        ("v1/completions", {"prompt": "a", "bad_words": ["b" * 1_000_000]}),
        ("tokenize", {"prompt": "a" * 1_000_000}),
        ("tokenize", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_of_a_text_that_is_far_too_long_the_beginning_is_read(route: str, body: Any) -> None:
    """It is refused by what that shows, as it would keep others waiting."""
    with serving(toy(tokenizer=(tokenizer := Counting()))) as served:
        tokenizer.read.clear()
        answer = httpx.post(f"{served.url}/{route}", json=body, timeout=30)
        assert (answer.status_code == 400 and "more than" in answer.text) or "bad_words" in body
        assert answer.json()["error"]["param"] in {*body, "bad_words"}
        assert sum(tokenizer.read) < 20_000


def test_times_begin_with_the_body() -> None:
    """What is done with it before the engine has it counts."""

    class Slow(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            time.sleep(0.3 * (text == "ab"))
            return super().encode(text)

    with serving(toy(tokenizer=Slow(VOCAB))) as served:
        body = {"prompt": "ab", "max_tokens": 2, "foretoken": {"blocks": True}}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=30).json()
        assert answer["choices"][0]["foretoken"]["blocks"][0]["ms"] > 300
        page = httpx.get(f"{served.url}/metrics").text
        told = re.search(r"time_to_first_token_seconds_sum\S+ (\S+)", page)
        assert told and float(told[1]) > 0.3


def test_a_default_asks_for_no_more_than_there_is_room_for() -> None:
    """Only what a client asked for itself is refused."""
    llm = toy(speculative_config=None, kv_cache_memory="128KiB")
    with serving(llm, defaults={"max_tokens": 200}) as served:
        for route, asked in (
            ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ("completions", {"prompt": "hi"}),
        ):
            url = f"{served.url}/v1/{route}"
            body = {"logit_bias": {str(VOCAB - 1): -100}, **asked}
            [choice] = httpx.post(url, json=body, timeout=30).json()["choices"]
            assert choice["finish_reason"] == "length"
            answer = httpx.post(url, json={**body, "max_tokens": 200}, timeout=30)
            assert answer.status_code == 400 and "of cache for a prompt" in answer.text


def test_a_prediction_is_no_longer_than_the_context() -> None:
    """What can't be written needn't be read by the engine that all clients share."""
    with toy() as llm:
        server = Server(AsyncLLM(llm), ServerSettings(names=("toy",)))
        params = SamplingParams(prediction="b" * 10_000)
        given = asyncio.run(server.encoded({"prompt": "a"}, params, None, "prompt"))
    assert given.params.prediction is not None
    assert len(given.params.prediction) == server.context
