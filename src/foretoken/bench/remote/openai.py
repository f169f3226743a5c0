"""One streamed chat completion from a server with the OpenAI interface, timed.

By the standard library's HTTP client, which adds nothing to the time: no retries, no proxies, and
the connection is made before the clock starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from foretoken.bench.remote.counters import Series, parse
from foretoken.errors import ForetokenError, unknown
from foretoken.sampling.params import SamplingParams

KEY = "OPENAI_API_KEY"
"""The environment variable with the key, where a server wants one."""

Message = dict[str, str]

_MALFORMED = ValueError, LookupError, TypeError, AttributeError  # raised by JSON of another shape


@dataclass
class Reply:
    """A streamed answer, with times on `perf_counter`'s clock.

    pieces: the text as it came, with a model's reasoning; arrivals: the time of each. text: the
    same without reasoning. ended: when the last piece or the reason for finishing came. tokens,
    prompt_tokens: the server's counts, None without them. error: what went wrong; nothing else
    counts then.
    """

    began: float = 0.0
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None

    def read(self, event: Mapping[str, Any], now: float) -> None:
        """Read one event of the stream."""
        if error := event.get("error"):
            raise ValueError(error.get("message", error) if isinstance(error, dict) else error)
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]
            self.prompt_tokens = usage["prompt_tokens"]
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            content = delta.get("content") or ""
            if content or thought:
                self.text += content
                self.pieces.append(thought + content)
                self.arrivals.append(now)
                self.ended = now
            if choice.get("finish_reason"):
                self.finish_reason = choice["finish_reason"]
                self.ended = now


@dataclass(frozen=True)
class Endpoint:
    """A model on a server. base_url is the one that clients are given, with /v1 or without.

    timeout: seconds to wait for the next piece of a reply.
    """

    base_url: str
    model: str
    timeout: float = 600.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ForetokenError(
                f"A server's address is like http://localhost:8000/v1, not {self.base_url!r}."
            )

    @property
    def root(self) -> str:
        """The address without /v1, and without whatever names or passwords stand in it."""
        parts = urlsplit(self.base_url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path.rstrip('/').removesuffix('/v1')}"

    def model_info(self) -> dict[str, Any]:
        """The server's entry for the model, {} where it doesn't list its models.

        Raises `ForetokenError` where it can't be reached or serves no model of this name.
        """
        try:
            status, text = self._get("/v1/models")
        except (OSError, HTTPException) as error:
            raise ForetokenError(
                f"No server answers at {self.root} ({_description(error)}); start it or correct "
                "its URL."
            ) from error
        if status in (401, 403):
            raise ForetokenError(f"{self.root} refuses the key; put the right one into {KEY}.")
        try:
            models: dict[str, dict[str, Any]] = {m["id"]: m for m in json.loads(text)["data"]}
        except _MALFORMED:
            return {}
        if models and self.model not in models:
            raise unknown(f"model of {self.root}", self.model, models)
        return models.get(self.model, {})

    def counters(self) -> Series:
        """The server's counters, {} where it has none."""
        try:
            status, text = self._get("/metrics")
        except (OSError, HTTPException):
            return {}
        return parse(text) if status == 200 else {}

    def ask(self, messages: Seq[Message], params: SamplingParams) -> Reply:
        """Stream one answer; an error is stored in the reply and not raised."""
        reply = Reply()
        try:
            with closing(self._connection()) as connection:
                connection.connect()
                body = json.dumps(self._body(messages, params))
                reply.began = perf_counter()
                connection.request("POST", self._path("/v1/chat/completions"), body, _headers())
                for event in _events(connection.getresponse()):
                    reply.read(event, perf_counter())
                if reply.finish_reason is None:
                    raise ValueError("the stream ended before the answer")
        except (OSError, HTTPException, *_MALFORMED) as error:
            reply.error = _description(error)
        return reply

    def _body(self, messages: Seq[Message], params: SamplingParams) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": list(messages),
            "temperature": params.temperature,
            "max_tokens": params.max_tokens,
            "seed": params.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        stop = list(params.stops)
        return {**body, "stop": stop} if stop else body

    def _get(self, path: str) -> tuple[int, str]:
        with closing(self._connection()) as connection:
            connection.request("GET", self._path(path), headers=_headers())
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")

    def _path(self, path: str) -> str:
        return urlsplit(self.root).path + path

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self.root)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.timeout)


def _headers() -> dict[str, str]:
    key = os.environ.get(KEY)
    return {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event. Raises ValueError where there is something else."""
    if response.status != 200:
        raise ValueError(f"status {response.status}: {_error_message(response)}")
    kind = response.headers.get_content_type()
    if kind != "text/event-stream":
        raise ValueError(f"the answer is not streamed but {kind}")
    for line in response:
        name, _, data = line.decode("utf-8").strip().partition(":")
        if name == "data" and data.strip() != "[DONE]":
            yield json.loads(data)


def _error_message(response: HTTPResponse) -> str:
    """The reason of a refusal, in one line."""
    text = response.read(4096).decode("utf-8", "replace")
    try:
        reply = json.loads(text)
        error = reply.get("error", reply)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except _MALFORMED:
        pass
    return " ".join(text.split()) or response.reason


def _description(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it sent nothing for too long"
    return str(error) or type(error).__name__
