"""OpenAI's own client, waiting and asynchronous, whole and streamed; and what answers look like."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from foretoken import SamplingParams
from foretoken.engine.engine import Engine
from served import Served, serving, toy

SAID: Any = [{"role": "user", "content": "what is asked"}]
COMMON: dict[str, Any] = {"model": "toy", "seed": 3, "max_tokens": 12}
OWN = {"chat": {"messages": SAID}, "text": {"prompt": "what is asked"}}

Way = Callable[[str, str, dict[str, Any]], list[str]]
"""An address, "chat" or "text", and fields -> the texts of the samples."""


def waiting(stream: bool) -> Way:
    def ask(url: str, route: str, fields: dict[str, Any]) -> list[str]:
        with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            made = client.chat.completions if route == "chat" else client.completions
            answer: Any = made.create(**fields, stream=stream)
            return gathered(answer) if stream else texts(answer)

    return ask


def asynchronous(stream: bool) -> Way:
    async def asked(url: str, route: str, fields: dict[str, Any]) -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            made = client.chat.completions if route == "chat" else client.completions
            answer: Any = await made.create(**fields, stream=stream)
            return gathered([part async for part in answer]) if stream else texts(answer)

    return lambda *given: asyncio.run(asked(*given))


WAYS = {
    "waiting": waiting(False),
    "waiting for a stream": waiting(True),
    "asynchronous": asynchronous(False),
    "asynchronous, a stream": asynchronous(True),
}


def texts(answer: Any) -> list[str]:
    return [
        choice.text if isinstance(answer, Completion) else choice.message.content
        for choice in answer.choices
    ]


def gathered(chunks: Any) -> list[str]:
    """A stream's samples."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            chat = isinstance(chunk, ChatCompletionChunk)
            part = choice.delta.content if chat else choice.text
            found[choice.index] = found.get(choice.index, "") + (part or "")
    return [found[place] for place in sorted(found)]


FIELDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.8},
    {"n": 3},
    {"stop": ["e", "q"]},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 1.5},
    {"logit_bias": {"70": 40}},
    {"max_tokens": 30},
    {"user": "somebody"},
]
"""Of OpenAI's, those of both routes; vLLM's are in test_chat.py."""


def offline(served: Served, route: str, fields: dict[str, Any]) -> list[str]:
    own = {
        name: value for name, value in (COMMON | fields).items() if name not in ("model", "user")
    }
    if "logit_bias" in own:
        own["logit_bias"] = {int(token): value for token, value in own["logit_bias"].items()}
    params, llm = SamplingParams(**own), served.llm
    [output] = llm.chat(SAID, params) if route == "chat" else llm.generate("what is asked", params)
    return [sample.text for sample in output.outputs]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("route", OWN)
@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: next(iter(fields), "none"))
def test_fields(served: Served, way: str, route: str, fields: dict[str, Any]) -> None:
    """The texts of the same seed, written offline."""
    asked = COMMON | OWN[route] | fields
    assert WAYS[way](served.url, route, asked) == offline(served, route, fields)


ERRORS: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
    (openai.BadRequestError, {"temperature": -1}),
    (openai.BadRequestError, {"max_tokens": 10**5}),
    (openai.BadRequestError, {"extra_body": {"nonsense": 1}}),
    (openai.NotFoundError, {"model": "another"}),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("route", OWN)
@pytest.mark.parametrize(("kind", "fields"), ERRORS)
def test_refusals(
    served: Served,
    way: str,
    route: str,
    kind: type[openai.APIStatusError],
    fields: dict[str, Any],
) -> None:
    with pytest.raises(kind) as caught:
        WAYS[way](served.url, route, COMMON | OWN[route] | fields)
    error = caught.value
    assert isinstance(error.body, dict)
    assert set(error.body) == {"message", "type", "param", "code"}
    assert error.body["code"] == error.status_code and error.request_id


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_key(way: str) -> None:
    with (
        serving(toy(), api_keys=("right",)) as served,
        pytest.raises(openai.AuthenticationError),
    ):
        WAYS[way](served.url, "chat", COMMON | OWN["chat"])


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_fails_is_not_sent_again(
    served: Served, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed step, before the first token: 500, and `x-should-retry: false`."""

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("it fails by design")

    monkeypatch.setattr(type(served.llm.engine.target), "score", fails)
    with pytest.raises(openai.InternalServerError, match="fails by design") as caught:
        WAYS[way](served.url, "text", COMMON | OWN["text"])
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("route", ["chat", "text"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_asked_again(route: str, stream: bool) -> None:
    """The client waits as long as it is told to, and is answered."""
    llm = toy(max_num_seqs=1, max_queued=0, max_model_len=256)
    with serving(llm) as served, OpenAI(base_url=f"{served.url}/v1", api_key="any") as client:
        made: Any = client.chat.completions if route == "chat" else client.completions
        asked = COMMON | OWN[route]
        long = client.completions.create(
            model="toy", prompt="a", max_tokens=250, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(long))
        with pytest.raises(openai.InternalServerError) as caught:
            impatient: Any = client.with_options(max_retries=0)
            (impatient.chat if route == "chat" else impatient).completions.create(
                **asked, stream=stream
            )
        assert caught.value.status_code == 503
        threading.Timer(0.3, long.close).start()
        raw = made.with_raw_response.create(**asked, stream=stream)
        assert raw.retries_taken == 1 and raw.request_id
        found = gathered(raw.parse()) if stream else texts(raw.parse())
        assert found == offline(served, route, {})


@pytest.mark.parametrize("route", OWN)
@pytest.mark.parametrize("stream", [False, True])
def test_raw_answers(client: OpenAI, route: str, stream: bool) -> None:
    made: Any = client.chat.completions if route == "chat" else client.completions
    asked = COMMON | OWN[route]
    ids = [
        made.with_raw_response.create(**asked, stream=stream, extra_headers=headers).request_id
        for headers in ({"X-Request-Id": "mine-1"}, {}, {})
    ]
    assert ids[0] == "mine-1" and len({*ids}) == 3 and all(ids)
    with made.with_streaming_response.create(**asked, stream=stream) as raw:
        assert raw.request_id and raw.http_response.status_code == 200
        assert raw.parse() is not None


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """When each step of any engine began; each takes a second at least."""
    begun: list[float] = []
    step = Engine.step

    def slower(self: Engine) -> Any:
        begun.append(time.monotonic())
        time.sleep(1)
        return step(self)

    monkeypatch.setattr(Engine, "step", slower)
    yield begun


@pytest.mark.parametrize("asynchronously", [False, True])
def test_a_stream_that_is_left_frees_its_slot_within_a_step(
    served: Served, slow: list[float], asynchronously: bool
) -> None:
    asked = COMMON | OWN["text"] | {"max_tokens": 200, "extra_body": {"ignore_eos": True}}

    async def cancelled() -> None:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any") as client:
            stream = await client.completions.create(**asked, stream=True)

            async def read() -> None:
                async for _ in stream:
                    pass

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.15)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.close()

    if asynchronously:
        asyncio.run(cancelled())
    else:
        with OpenAI(base_url=f"{served.url}/v1", api_key="any") as client:
            stream = client.completions.create(**asked, stream=True)
            next(iter(stream))
            stream.close()
    left = time.monotonic()
    while httpx.get(f"{served.url}/load").json()["server_load"]:
        assert time.monotonic() < left + 30
    assert sum(began > left for began in slow) <= 1  # one is under way, and one may begin meanwhile
    assert served.llm.worker.call(lambda engine: engine.target.free) == 4


# What vLLM 0.33 answers with, by the fields of its protocol: all of them have to be there.
SHAPES: dict[str, dict[str, Any]] = {
    "chat.completion": {
        "top": "id object created model choices usage system_fingerprint",
        "choice": "index message logprobs finish_reason stop_reason",
        "message": "role content refusal",
    },
    "chat.completion.chunk": {
        "top": "id object created model choices",
        "choice": "index delta logprobs finish_reason",
    },
    "text_completion": {
        "top": "id object created model choices",
        "choice": "index text logprobs finish_reason stop_reason",
    },
    "logprob": {"top": "token logprob bytes top_logprobs"},
    "logprobs": {"top": "text_offset token_logprobs tokens top_logprobs"},
    "usage": {"top": "prompt_tokens completion_tokens total_tokens prompt_tokens_details"},
    "metrics": {
        "top": "time_to_first_token_ms generation_time_ms queue_time_ms mean_itl_ms "
        "tokens_per_second speculative_decoding"
    },
    "speculative_decoding": {
        "top": "mean_acceptance_length draft_acceptance_rate acceptance_histogram num_spec_steps "
        "num_accepted_draft_tokens num_draft_tokens num_spec_tokens"
    },
    "model": {"top": "id object created owned_by root parent max_model_len permission"},
    "tokens": {"top": "count max_model_len tokens token_strs"},
}


def has(kind: str, told: Any, part: str = "top") -> None:
    assert set(SHAPES[kind][part].split()) <= set(told), kind


def test_shapes_of_answers(http: httpx.Client) -> None:
    asked = COMMON | OWN["chat"] | {"logprobs": True, "top_logprobs": 2}
    told = http.post("/v1/chat/completions", json=asked).json()
    has(told["object"], told)
    [choice] = told["choices"]
    has(told["object"], choice, "choice")
    has(told["object"], choice["message"], "message")
    for entry in choice["logprobs"]["content"]:
        has("logprob", entry)
    has("usage", told["usage"])
    has("metrics", told["metrics"])
    has("speculative_decoding", told["metrics"]["speculative_decoding"])
    ChatCompletion.model_validate(told, strict=True)
    told = http.post("/v1/completions", json=COMMON | OWN["text"] | {"logprobs": 2}).json()
    has(told["object"], told)
    has(told["object"], told["choices"][0], "choice")
    has("logprobs", told["choices"][0]["logprobs"])
    Completion.model_validate(told, strict=True)


@pytest.mark.parametrize(("path", "route"), [("chat/completions", "chat"), ("completions", "text")])
def test_shapes_of_streams(client: OpenAI, path: str, route: str) -> None:
    made: Any = client.chat.completions if route == "chat" else client.completions
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = made.create(**COMMON, **OWN[route], stream=True, stream_options=options)
    *chunks, last = [chunk.to_dict() for chunk in stream]
    assert chunks and last["choices"] == [] and "metrics" in last
    for chunk in chunks:
        has(chunk["object"], chunk)
        has(chunk["object"], chunk["choices"][0], "choice")
        has("usage", chunk["usage"])


def test_shapes_of_the_other_routes(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert listed["object"] == "list"
    has("model", listed["data"][0])
    body = {"prompt": "ab", "return_token_strs": True}
    told = http.post("/tokenize", json=body).json()
    has("tokens", told)
    assert http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "ab"}
