"""One streamed chat completion from a server with the OpenAI interface, timed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPResponse
from time import perf_counter
from types import UnionType
from typing import Any

from foretoken.bench.remote.address import KEY, Address, read_address
from foretoken.bench.remote.connection import Limits, Unanswered, connected, pieces
from foretoken.bench.remote.counters import Series, parse
from foretoken.bench.remote.events import events
from foretoken.errors import ForetokenError, unknown
from foretoken.sampling.params import SamplingParams

Message = dict[str, str]

_LOOK_UP = 60.0  # most seconds to read a server's models or counters
_REASON = 2**16  # bytes of a refusal that are read, and
_SHOWN = 300  # its characters that are kept
_MOST_TOKENS = 2**31
_NAMES, _NAME = 1000, 80  # models of a server that are compared, and their letters

_BROKEN = ("abort", "error")  # vLLM's and SGLang's words for an answer that isn't whole
_MALFORMED = ValueError, LookupError, TypeError, RecursionError  # raised by JSON of another shape


@dataclass
class Reply:
    """A streamed answer, with times on `perf_counter`'s clock.

    pieces: the text as it came, with a model's reasoning; arrivals: the time of each. contents:
    the same without reasoning, joined at the end as text. ended: when the last piece or the
    reason for finishing came. tokens, prompt_tokens: the server's counts, None without them.
    error: what went wrong; nothing else counts then.
    """

    began: float = 0.0
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    pieces: list[str] = field(default_factory=list, repr=False)
    contents: list[str] = field(default_factory=list, repr=False)
    finish_reason: str | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None

    def read(self, event: bytes, now: float) -> None:
        """Read the data of one event. Raises `Unanswered` where it says something else."""
        data = _object(event)
        if error := data.get("error"):
            raise Unanswered(f"reports an error: {_message(error)}")
        usage = _typed(data.get("usage"), dict | None, "usage") or {}
        self.tokens = _count(usage, "completion_tokens", self.tokens)
        self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
        if "choices" not in data and not usage:
            raise Unanswered("sent an event without choices")
        told = data.get("choices")
        choices = [] if told is None and usage else _typed(told, list, "list of choices")
        for choice in choices:
            self._read_choice(_typed(choice, dict, "choice"), now)

    def _read_choice(self, choice: dict[str, Any], now: float) -> None:
        delta = _typed(choice.get("delta"), dict | None, "delta") or {}
        content, *thoughts = (
            _typed(delta.get(name), str | None, name) or ""
            for name in ("content", "reasoning_content", "reasoning")
        )
        thought = thoughts[0] or thoughts[1]
        if content or thought:
            self.contents.append(content)
            self.pieces.append(thought + content)
            self.arrivals.append(now)
            self.ended = now
        if reason := _typed(choice.get("finish_reason"), str | None, "finish_reason"):
            self.finish_reason = reason
            self.ended = now


@dataclass(frozen=True)
class Endpoint:
    """A model on a server. base_url is the one that clients are given, with /v1 or without.

    timeout: seconds to wait for the next piece of a reply. total: seconds for all of it.
    Raises `ForetokenError` for an address or a key that can't be used.
    """

    base_url: str = field(repr=False)
    model: str
    timeout: float = 600.0
    total: float = 3600.0

    def __post_init__(self) -> None:
        _ = self._address  # is refused now and not when it is needed

    @cached_property
    def _address(self) -> Address:
        return read_address(self.base_url, os.environ.get(KEY))

    @property
    def root(self) -> str:
        """The address without /v1, and without what is secret in it."""
        return self._address.root

    def model_info(self) -> dict[str, Any]:
        """The server's entry for the model, {} where it doesn't list its models.

        Raises `ForetokenError` where it can't be reached or serves no model of this name.
        """
        try:
            status, text = self._get("/v1/models")
        except Unanswered as error:
            raise ForetokenError(
                f"No server answers at {self.root}: it {error}; start it or correct its URL."
            ) from error
        if status in (401, 403):
            raise ForetokenError(f"{self.root} refuses the key; put the right one into {KEY}.")
        try:
            models: dict[str, dict[str, Any]] = {str(m["id"]): m for m in json.loads(text)["data"]}
        except _MALFORMED:
            return {}
        if models and self.model not in models:
            names = [self._address.redacted_error(name)[:_NAME] for name in list(models)[:_NAMES]]
            raise unknown(f"model of {self.root}", self.model, names)
        return models.get(self.model, {})

    def counters(self) -> Series:
        """The server's counters, {} where it has none, or doesn't tell them this time."""
        try:
            status, text = self._get("/metrics")
        except Unanswered:
            return {}
        return parse(text) if status == 200 else {}

    def ask(self, messages: Seq[Message], params: SamplingParams) -> Reply:
        """Stream one answer; an error is stored in the reply and not raised."""
        reply, address = Reply(), self._address
        body = json.dumps(self._body(messages, params)).encode()
        try:
            with connected(address, Limits(self.timeout, self.total)) as connection:
                reply.began = perf_counter()
                response = connection.ask("POST", "/v1/chat/completions", body)
                _check_head(response)
                for event in events(pieces(response)):
                    reply.read(event, perf_counter())
            if reply.finish_reason is None:
                raise Unanswered("ended its stream before the answer")
            if reply.finish_reason in _BROKEN:
                raise Unanswered(f"ended its answer by {reply.finish_reason!r}")
        except Unanswered as error:
            told = " ".join(address.redacted_error(str(error)).split())
            reply.error = f"{address.host} {told[:_SHOWN]}"
        reply.text = address.redacted("".join(reply.contents))
        reply.finish_reason = reply.finish_reason and address.redacted(reply.finish_reason)
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
        limits = Limits(min(self.timeout, _LOOK_UP), min(self.total, _LOOK_UP))
        with connected(self._address, limits) as connection:
            response = connection.ask("GET", path)
            return response.status, b"".join(pieces(response)).decode("utf-8", "replace")


def _check_head(response: HTTPResponse) -> None:
    """Raise `Unanswered` for what is no stream of events."""
    if response.status != 200:
        reason = _reason(response) or response.reason
        raise Unanswered(f"answered with status {response.status}: {reason}")
    kind = response.headers.get_content_type()
    if kind != "text/event-stream":
        raise Unanswered(f"answered with {kind} and not with a stream")


def _reason(response: HTTPResponse) -> str:
    """Why a server refuses, as far as it was read."""
    text = response.read(_REASON).decode("utf-8", "replace")
    try:
        reply = json.loads(text)
        return _message(reply.get("error", reply))
    except (*_MALFORMED, AttributeError):
        return text


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _object(event: bytes) -> dict[str, Any]:
    try:
        data = json.loads(event.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Unanswered("sent text that isn't UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise Unanswered("sent an event that isn't JSON") from error
    if not isinstance(data, dict):
        raise Unanswered("sent an event that is no JSON object")
    return data


def _typed(value: Any, kind: type | UnionType, what: str) -> Any:
    """The value. Raises `Unanswered`, without its text, where it is of another type."""
    if isinstance(value, kind):
        return value
    raise Unanswered(f"sent an event whose {what} is of type {type(value).__name__}")


def _count(usage: dict[str, Any], name: str, before: int | None) -> int | None:
    """A count of tokens, the one before where there is none."""
    value = usage.get(name)
    if value is None:
        return before
    if type(value) is not int or not 0 <= value < _MOST_TOKENS:
        raise Unanswered(f"sent an event whose {name} are no number of tokens")
    return value
