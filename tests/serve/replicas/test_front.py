"""The front before replicas that die, without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from foretoken import AsyncLLM
from foretoken.serve.app import application
from foretoken.serve.replicas.asked import Asked
from foretoken.serve.replicas.front import TRIES, Lost, front
from foretoken.serve.replicas.served import answered
from foretoken.serve.settings import ServerSettings
from served import toy

BODY = {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 1.0, "ignore_eos": True}


class Dying:
    """Replicas of which the first ones die after so many messages."""

    def __init__(self) -> None:
        llm = AsyncLLM(toy(speculative_config=None))
        self.app = application(llm, ServerSettings(names=("toy",)))
        self.llm, self.deaths, self.asked = llm, [], []  # type: ignore[var-annotated]

    async def ask(self, asked: Asked) -> AsyncGenerator[Message]:
        self.asked.append(asked)
        left = self.deaths.pop(0) if self.deaths else -1
        async for message in answered(self.app, asked):
            if left == 0:
                raise Lost
            left -= 1
            yield message
        if left == 0:
            raise Lost

    async def all(self, what: str) -> list[Any]:
        page: bytes = self.app.state.server.metrics.text()
        return {
            "healthy": [] if self.deaths else [True],
            "load": [(1, 2, 0), (0, 1, 3)],
            "metrics": [page, page.replace(b'engine="0"', b'engine="1"')],
            "reset_prefix_cache": [] if self.deaths else [True, True],
        }[what]


@pytest.fixture(scope="module")
def replicas() -> Iterator[Dying]:
    made = Dying()
    yield made
    made.llm.llm.close()


@pytest.fixture
def http(replicas: Dying) -> Iterator[TestClient]:
    replicas.deaths, replicas.asked = [], []
    with TestClient(front(replicas, ServerSettings(names=("toy",)))) as client:
        yield client


def _text(answer: str) -> str:
    """The text of a stream; its end must be the only one."""
    events = [line[6:] for line in answer.split("\n\n") if line]
    assert events.count("[DONE]") == 1 and events[-1] == "[DONE]"
    return "".join(json.loads(part)["choices"][0]["text"] for part in events[:-1])


def test_a_request_is_given_again(http: TestClient, replicas: Dying) -> None:
    """Nothing of an answer has been sent until all of it is there."""
    alone = http.post("/v1/completions", json=BODY | {"seed": 4}).json()
    replicas.deaths = [0, 1, 2]
    again = http.post("/v1/completions", json=BODY | {"seed": 4})
    assert again.json()["choices"] == alone["choices"] and not replicas.deaths
    assert "x-request-id" not in again.headers  # Ray's proxy adds it


@pytest.mark.parametrize("at", range(16))
@pytest.mark.parametrize("seed", [{}, {"seed": 4}])
def test_a_stream_goes_on(http: TestClient, replicas: Dying, at: int, seed: dict[str, int]) -> None:
    """Wherever it broke off, twice; a request that names no seed gets one."""
    replicas.deaths = [at, max(0, at - 2)]
    broken = http.post("/v1/completions", json=BODY | seed | {"stream": True})
    given = json.loads(replicas.asked[0].body)["seed"]
    whole = http.post("/v1/completions", json=BODY | {"seed": given}).json()
    assert _text(broken.text) == whole["choices"][0]["text"]


def test_streams_that_carry_more_end_with_an_error(http: TestClient, replicas: Dying) -> None:
    """Where they had begun; the official body says so."""
    replicas.deaths = [3]
    broken = http.post("/v1/completions", json=BODY | {"stream": True, "logprobs": 1}).text
    *_, error, end, _ = broken.split("\n\n")
    assert json.loads(error[6:])["error"]["code"] == 503 and end == "data: [DONE]"
    replicas.deaths = [1]  # nothing but the headers had been sent
    whole = http.post("/v1/completions", json=BODY | {"stream": True, "logprobs": 1}).text
    assert "error" not in whole


def test_tries_are_bounded(http: TestClient, replicas: Dying) -> None:
    replicas.deaths = [0] * TRIES
    refused = http.post("/v1/completions", json=BODY)
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert len(replicas.asked) == TRIES


def test_seeds_of_several_prompts_differ(http: TestClient) -> None:
    """Equal prompts of one request have answers of their own, as before one server."""
    body = BODY | {"prompt": [[5, 6, 7]] * 2}
    one, two = http.post("/v1/completions", json=body).json()["choices"]
    assert one["text"] != two["text"]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"prompt": 3}', b"[" * 100_000])
def test_wrong_bodies_are_told_as_before_one_server(
    http: TestClient, replicas: Dying, raw: bytes
) -> None:
    kind = {"content-type": "application/json"}
    told = http.post("/v1/completions", content=raw, headers=kind)
    with TestClient(front(replicas, ServerSettings(names=("toy",)))):
        alone = TestClient(replicas.app).post("/v1/completions", content=raw, headers=kind)
    assert told.status_code == alone.status_code == 400 and told.json() == alone.json()
    assert http.get("/v1/none").status_code == 404 and http.put("/v1/models").status_code == 405


def test_what_is_asked_of_all(http: TestClient, replicas: Dying) -> None:
    load = http.get("/load").json()
    assert (load["running"], load["waiting"], load["server_load"]) == (3, 3, 6)
    assert [each["engine"] for each in load["replicas"]] == [0, 1]
    page = http.get("/metrics").text
    for engine in "01":
        assert f'foretoken:num_requests_running{{engine="{engine}",model_name="toy"}}' in page
    assert page.count("# TYPE foretoken:num_requests_running ") == 1
    assert http.post("/reset_prefix_cache").json() == {"success": True}
    assert http.get("/health").status_code == 200
    replicas.deaths = [0]  # and no other one answers
    assert http.get("/health").status_code == 503
    assert http.post("/reset_prefix_cache").json() == {"success": False}


def test_keys_are_checked_at_the_front(replicas: Dying) -> None:
    keys = ServerSettings(names=("toy",), api_keys=("secret",))
    with TestClient(front(replicas, keys)) as client:
        assert client.post("/v1/completions", json=BODY).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert client.post("/v1/completions", json=BODY, headers=key).status_code == 200


async def _drained(app: Any) -> None:
    await asyncio.wait_for(app.state.passing.drain(60.0), 5.0)


def test_an_ending_server_refuses(replicas: Dying) -> None:
    """As soon as what ran has ended."""
    replicas.deaths = []
    app = front(replicas, ServerSettings(names=("toy",)))
    with TestClient(app) as client:
        assert client.portal is not None
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=BODY).status_code == 200
        client.portal.call(_drained, app)
        assert client.get("/health").status_code == 503  # or balancers would go on asking it
        refused = client.post("/v1/completions", json=BODY)
        assert refused.status_code == 503 and refused.headers["retry-after"]
