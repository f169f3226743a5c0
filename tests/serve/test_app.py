"""The other routes, and what every answer has in common."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from openai import OpenAI
from starlette.types import Message, Receive, Scope, Send

from foretoken import AsyncLLM
from foretoken.async_llm import Load
from foretoken.serve.app import Bugs, application
from foretoken.serve.replicas.asked import Asked
from foretoken.serve.server import Server
from foretoken.serve.settings import ServerSettings
from served import Served, serving, toy

ALLOWED = ("allow-origin", "allow-credentials", "expose-headers")


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy", "other"]
    card = client.models.retrieve("other")
    assert card.id == "other" and card.model_extra is not None
    assert card.model_extra["max_model_len"] == 256
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("none")


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'none' does not exist") as caught:
        client.completions.create(model="none", prompt="a")
    assert caught.value.param == "model"


def test_small_routes(http: httpx.Client) -> None:
    assert http.get("/health").content == b"" and http.get("/health").status_code == 200
    assert http.post("/ping").status_code == http.get("/ping").status_code == 200
    assert http.get("/version").json()["version"]
    assert http.get("/load").json() == {"server_load": 0, "running": 0, "waiting": 0}


def test_what_waits_is_load_too(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncLLM, "load", property(lambda _: Load(2, 3)))
    assert http.get("/load").json() == {"server_load": 5, "running": 2, "waiting": 3}
    page = http.get("/metrics").text
    for name, count in (("running", 2), ("waiting", 3)):
        labels = '{engine="0",model_name="toy"}'
        assert f"foretoken:num_requests_{name}{labels} {count}.0" in page


def test_the_prefix_cache_is_reset(http: httpx.Client) -> None:
    """The prompt that was read last is read anew."""

    def cached() -> int:
        body = {"prompt": "again and again", "max_tokens": 2}
        usage = http.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 0
    assert http.post("/reset_prefix_cache").json() == {"success": True}
    assert cached() == 0


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/v1/completions", 405)]
)
def test_wrong_paths(http: httpx.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["code"] == status
    assert answer.headers.get("allow") == {404: None, 405: "POST"}[status]


def test_web_pages_may_ask_where_they_are_allowed() -> None:
    with serving(toy(), allowed_origins=("https://huggingface.co",)) as served:
        headers = {"Origin": "https://huggingface.co", "Access-Control-Request-Method": "POST"}
        answer = httpx.options(f"{served.url}/v1/completions", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://huggingface.co"
        other = headers | {"Origin": "https://github.com"}
        refused = httpx.options(f"{served.url}/v1/completions", headers=other)
        assert "access-control-allow-origin" not in refused.headers
        assert "access-control-allow-credentials" not in answer.headers
    assert served.llm.worker.closed  # with the server


def test_a_web_page_reads_why_it_is_refused() -> None:
    """A browser keeps answers from it that don't say that it may have them."""
    page = "https://huggingface.co"
    own = {"allowed_origins": (page,), "allow_credentials": True, "api_keys": ("key",)}
    with serving(toy(), **own) as served:
        refused = httpx.get(f"{served.url}/v1/models", headers={"Origin": page})
    assert refused.status_code == 401
    allowed = {name: refused.headers[f"access-control-{name}"] for name in ALLOWED}
    assert [*allowed.values()] == [page, "true", "x-request-id"]


def test_no_web_page_may_ask_by_default(http: httpx.Client) -> None:
    answer = http.get("/v1/models", headers={"Origin": "https://huggingface.co"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_closed_model_is_unavailable() -> None:
    with serving(toy()) as served:
        served.llm.close()
        assert httpx.get(f"{served.url}/health").status_code == 503
        body = {"prompt": "a", "max_tokens": 2}
        answer = httpx.post(f"{served.url}/v1/completions", json=body)
        assert answer.status_code == 503 and "closed" in answer.json()["error"]["message"]
        assert httpx.get(f"{served.url}/metrics").status_code == 200


def test_a_client_that_goes_while_it_sends_is_no_failure() -> None:
    """Of the server, whose log would have a traceback for each."""
    kind = ((b"content-type", b"application/json"),)
    asked = Asked("POST", "/v1/completions", b"", "", kind, b"", "")
    begun = {"type": "http.request", "body": b'{"prompt": ', "more_body": True}
    coming, sent = [begun, {"type": "http.disconnect"}], list[Message]()

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    llm = AsyncLLM(toy())
    app = application(llm, ServerSettings(names=("toy",)))
    asyncio.run(app(asked.scope(), receive, send))
    assert sent[0]["status"] == 499  # which nobody reads
    llm.llm.close()


def test_unknown_fields_may_be_ignored() -> None:
    body = {"prompt": "a", "max_tokens": 2, "nonsense": 1}
    with serving(toy(), ignore_unknown_fields=True) as served:
        url = f"{served.url}/v1/completions"
        assert httpx.post(url, json=body).status_code == 200
        # what would change the text is refused all the same
        assert httpx.post(url, json=body | {"guided_json": {}}).status_code == 400


def test_what_was_not_expected_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise KeyError("inner")

    monkeypatch.setattr(type(served.llm.worker), "check", lambda self: fails())
    answer = httpx.get(f"{served.url}/health")
    assert answer.status_code == 500 and answer.headers["x-should-retry"] == "false"
    assert "KeyError" in answer.json()["error"]["message"]


def test_what_was_not_expected_has_the_headers_of_every_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without which a web page can't read it, nor anybody find it in a log."""

    def fails(server: Server, name: str | None) -> None:
        raise KeyError("inner")

    with serving(toy(), allowed_origins=("https://huggingface.co",)) as served:
        monkeypatch.setattr(Server, "check_model", fails)
        headers = {"Origin": "https://huggingface.co", "X-Request-Id": "a"}
        answer = httpx.get(f"{served.url}/v1/models/x", headers=headers)
    assert answer.status_code == 500 and "KeyError" in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"] == "a"
    assert answer.headers["access-control-allow-origin"] == "https://huggingface.co"


@pytest.mark.parametrize("begun", [False, True])
def test_what_was_not_expected_is_answered_once_and_goes_on(begun: bool) -> None:
    """Into the log; what has begun is not begun again."""
    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(_: Scope, __: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("inner")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(KeyError):
        asyncio.run(Bugs(app)({"type": "http", "headers": []}, receive, send))
    starts = [message["status"] for message in sent if "status" in message]
    assert starts == [200 if begun else 500]
