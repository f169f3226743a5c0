"""What clients speak to: passes requests on to replicas, again where one has died."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from random import SystemRandom
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from foretoken.serve.app import HANDLERS, middleware
from foretoken.serve.errors import RETRY, ApiError, body
from foretoken.serve.metrics import CONTENT_TYPE
from foretoken.serve.replicas.asked import Asked, asked
from foretoken.serve.replicas.continuation import Continuation, Unlike
from foretoken.serve.replicas.pages import merged
from foretoken.serve.request_ids import HEADER
from foretoken.serve.settings import ServerSettings
from foretoken.serve.streaming import DONE, Gone, event, while_there

TRIES = 4  # replicas that a request is given to before it is given up
_LOST = "The replica that answered has died; send the request again."


class Lost(Exception):
    """A replica has died before it had answered."""


class Replicas(Protocol):
    """The replicas of a model."""

    def ask(self, asked: Asked) -> AsyncGenerator[Message]:
        """One of them answers, in ASGI's messages. Raises `Lost`."""
        ...

    async def all(self, what: str) -> list[Any]:
        """What each one that answers in time says to `what`, a method of theirs."""
        ...


def front(replicas: Replicas, settings: ServerSettings) -> Starlette:
    """The server that stands before the replicas; `app.state.passing` passes requests on."""
    passing = Passing(replicas, settings.max_body)
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ping", health, methods=["GET", "POST"]),
            Route("/load", load),
            Route("/metrics", metrics),
            Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
            Mount("/", passing),
        ],
        middleware=middleware(settings),
        exception_handlers=HANDLERS,
    )
    app.state.replicas, app.state.passing = replicas, passing
    return app


async def health(request: Request) -> Response:
    """Empty, with 200 where requests are taken and at least one replica can serve."""
    request.app.state.passing.check()
    if not any(await _all(request, "healthy")):
        raise ApiError(503, "No replica can serve now; they are being started.", headers=RETRY)
    return Response()


async def load(request: Request) -> Response:
    """How many requests there are, on all replicas and on each."""
    counts = sorted(await _all(request, "load"))
    running, waiting = sum(c[1] for c in counts), sum(c[2] for c in counts)
    each = [{"engine": engine, "running": r, "waiting": w} for engine, r, w in counts]
    told = {"server_load": running + waiting, "running": running, "waiting": waiting}
    return JSONResponse(told | {"replicas": each})


async def metrics(request: Request) -> Response:
    """All replicas' metrics on one page; `engine` tells them apart."""
    return Response(merged(await _all(request, "metrics")), media_type=CONTENT_TYPE)


async def reset_prefix_cache(request: Request) -> Response:
    """All replicas forget what caches have of earlier texts."""
    done = await _all(request, "reset_prefix_cache")
    return JSONResponse({"success": bool(done) and all(done)})


async def _all(request: Request, what: str) -> list[Any]:
    replicas: Replicas = request.app.state.replicas
    return await replicas.all(what)


class Passing:
    """Passes requests on, as an ASGI application."""

    def __init__(self, replicas: Replicas, max_body: int) -> None:
        self._replicas, self._max_body = replicas, max_body
        self._random = SystemRandom()
        self._running = 0
        self._ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.check()
        request = Request(scope, receive)
        self._running += 1
        try:
            given = await asked(request, self._max_body, lambda: self._random.getrandbits(62))
            with contextlib.suppress(Gone):
                await while_there(request, self._relay(given, send))
        finally:
            self._running -= 1

    def check(self) -> None:
        """Raise `ApiError` where no requests are taken any more."""
        if self._ending:
            raise ApiError(503, "The server is ending.", headers=RETRY)

    async def drain(self, patience: float) -> None:
        """Take no more requests; wait until those that run have ended, or `patience` seconds."""
        self._ending = True
        until = time.monotonic() + patience
        while self._running and time.monotonic() < until:
            await asyncio.sleep(0.05)

    async def _relay(self, given: Asked, send: Send) -> None:
        async with contextlib.aclosing(self._answer(given)) as messages:
            async for message in messages:
                await send(message)

    async def _answer(self, given: Asked) -> AsyncGenerator[Message]:
        """The answer of the first replica that lives to its end. Raises `ApiError` where none does
        and nothing has been sent."""
        sent: list[bytes] = []
        started = False
        for _ in range(TRIES):
            try:
                rest = Continuation(sent) if started else None
                async with contextlib.aclosing(self._replicas.ask(given)) as messages:
                    async for message in _whole(messages):
                        new = message if rest is None else _rest(message, rest, sent)
                        if new is not None:
                            started = True
                            sent.append(new.get("body", b""))
                            yield new
                return
            except Lost:
                continue
            except Unlike:
                break
        if not started:
            raise ApiError(503, _LOST, headers=RETRY)
        yield _last(event(body(503, _LOST)) + DONE)


async def _whole(messages: AsyncGenerator[Message]) -> AsyncGenerator[Message]:
    """A stream's messages as they come; those of any other answer once all are there, so that
    nothing of it has been sent where its replica dies. Ray's proxy adds the request's id itself."""
    start = await anext(messages)
    start["headers"] = [pair for pair in start["headers"] if pair[0] != HEADER.encode()]
    if _streams(start):
        yield start
        async for message in messages:
            yield message
        return
    rest = [message async for message in messages]
    yield start
    for message in rest:
        yield message


def _streams(start: Message) -> bool:
    kinds = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    return kinds != [] and kinds[0].startswith(b"text/event-stream")


def _rest(message: Message, rest: Continuation, sent: list[bytes]) -> Message | None:
    """What of a message is new; None for nothing. Raises `Unlike` for an answer that is no stream:
    the other replica has refused."""
    if message["type"] == "http.response.start":
        if not _streams(message):
            raise Unlike
        return None
    if not message.get("more_body"):
        return message
    if DONE.encode() in sent:
        return None
    new = rest.more(message["body"])
    return {**message, "body": new} if new else None


def _last(text: str) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": False}
