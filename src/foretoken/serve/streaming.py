"""Answers as they grow: server-sent events, and waiting for what a client may walk away from."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from foretoken.async_llm import OutputStream
from foretoken.engine.outputs import CompletionOutput, Logprob, RequestOutput
from foretoken.serve.errors import ApiError, body, response, unexpected

T = TypeVar("T")

DONE = "data: [DONE]\n\n"
KEEP_ALIVE = ": keep-alive\n\n"
_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""What ends no line of an event, and does for clients that split texts as Python does (httpx)."""
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass it on at once


def event(data: Mapping[str, Any]) -> str:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text.translate(_BREAKS)}\n\n"


class Gone(Exception):
    """The client has gone; nobody reads an answer."""


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives. It is cancelled, and `Gone` raised, as soon as the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        await _ended(working, leaving)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what isn't done, and wait until it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Answer(Protocol):
    """An answer, whole or in parts."""

    async def whole(self) -> dict[str, Any]: ...

    def events(self) -> AsyncGenerator[str]: ...


async def respond(
    request: Request, answer: Answer, stream: bool, silence: float, close: Callable[[], None]
) -> Response:
    """The response that carries an answer. `close` is called once nobody waits for it any more."""
    if stream:
        return EventStream(told(answer.events()), silence, close)
    try:
        return JSONResponse(await while_there(request, answer.whole()))
    finally:
        close()


class EventStream(Response):
    """Sends events as they come, and a comment after each `silence` seconds without one.

    It begins with the first of them: an `ApiError` before anything was sent is an answer of its
    own, with its status, so that clients tell a refusal and may ask again; a later one is told by
    the stream's last event. The events' generator is
    closed, and `close` called, whatever happens: at the end, or as the client goes.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[str], silence: float, close: Callable[[], None]
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events, self._silence, self._close = events, silence or None, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(scope, receive, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            self._close()
            await _ended(writing, leaving)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        lines = _Lines(start, send)
        try:
            async with contextlib.aclosing(self._events), lines.kept_alive(self._silence):
                async for text in self._events:
                    await lines.send(text)
            await lines.end()
        except ApiError as error:
            if not lines.begun:
                await response(error)(scope, receive, send)
                return
            await lines.end_with(error.status, error.message)
        except Exception as error:
            if lines.begun:
                await lines.end_with(500, unexpected(error))
            raise


class _Lines:
    """What is sent of a response, from its start on."""

    def __init__(self, start: Message, send: Send) -> None:
        self._start, self._send = start, send
        self._sending = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._last = self._clock()
        self.begun = False

    async def send(self, text: str) -> None:
        async with self._sending:
            await self._begin()
            self._last = self._clock()
            await self._send(_body(text))

    async def end(self) -> None:
        async with self._sending:
            await self._begin()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def end_with(self, status: int, message: str) -> None:
        """End a stream that has begun with an error."""
        await self.send(event(body(status, message)))
        await self.send(DONE)
        await self.end()

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._send(self._start)

    @contextlib.asynccontextmanager
    async def kept_alive(self, silence: float | None) -> AsyncGenerator[None]:
        """Sends a comment after each `silence` seconds in which nothing was sent."""
        if silence is None:
            yield
            return
        asking = asyncio.ensure_future(self._keep_alive(silence))
        try:
            yield
        finally:
            await _ended(asking)

    async def _keep_alive(self, silence: float) -> None:
        while True:
            await asyncio.sleep(self._last + silence - self._clock())
            if self._clock() - self._last >= silence:
                await self.send(KEEP_ALIVE)


def _body(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def merged(streams: Seq[OutputStream]) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """The outputs of several requests as they come, each with its request's place."""
    if len(streams) == 1:  # without two tasks an output
        async for only in streams[0]:
            yield 0, only
        return
    waiting = {asyncio.ensure_future(anext(s, None)): place for place, s in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place, output = waiting.pop(task), task.result()
                if output is not None:
                    waiting[asyncio.ensure_future(anext(streams[place], None))] = place
                    yield place, output
    finally:
        await _ended(*waiting)


async def last(stream: OutputStream) -> RequestOutput:
    """The output that a request ends with."""
    output = None
    async for output in stream:  # noqa: B007
        pass
    assert output is not None  # a request has one at least
    return output


@dataclass(frozen=True)
class Delta:
    """What was added to a sample since the last time. start: tokens that had been told; opens:
    whether it is the first."""

    text: str
    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    start: int
    opens: bool
    finish_reason: str | None
    stop_reason: str | int | None


class Told:
    """How much of a sample a client has been told."""

    def __init__(self) -> None:
        self._characters = self._tokens = 0
        self._ended = False

    def more(self, sample: CompletionOutput) -> Delta | None:
        """What is new, if anything is."""
        start, told = self._tokens, self._characters
        if self._ended or (len(sample.token_ids) == start and sample.finish_reason is None):
            return None
        self._tokens, self._ended = len(sample.token_ids), sample.finish_reason is not None
        self._characters = max(told, len(sample.text))
        return Delta(
            text=sample.text[told:],
            tokens=sample.token_ids[start:],
            logprobs=(sample.logprobs or [])[start:],
            start=start,
            opens=start == 0,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
        )


async def told(events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """The events of a stream, with the one that ends it."""
    async with contextlib.aclosing(events):
        async for text in events:
            yield text
    yield DONE
