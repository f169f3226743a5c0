"""Parts of answers."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from foretoken.engine.outputs import CompletionOutput
from foretoken.serve.errors import ApiError
from foretoken.serve.streaming import (
    DONE,
    KEEP_ALIVE,
    EventStream,
    Gone,
    Told,
    event,
    respond,
    told,
    while_there,
)

CLOSED: list[str] = []


async def events(pause: float = 0.0) -> AsyncGenerator[str]:
    try:
        for word in ("one", "two"):
            await asyncio.sleep(pause)
            yield word
    finally:
        CLOSED.append("events")


class Hasty(selectors.DefaultSelector):
    """Waits for nothing: the time that it was to wait is over."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class Quick(asyncio.SelectorEventLoop):
    """A loop whose clock shows just the times that something was to happen at."""

    def __init__(self) -> None:
        self._hasty = Hasty()
        super().__init__(self._hasty)

    def time(self) -> float:
        return self._hasty.now


def sent(stream: EventStream, leave_after: int | None = None) -> list[str]:
    """The bodies that are sent; the client goes after so many of them. Then all is closed."""
    CLOSED.clear()
    bodies: list[str] = []

    async def main() -> list[str]:
        left = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                bodies.append(message["body"].decode())
                if len(bodies) == leave_after:
                    left.set()
                    await asyncio.sleep(0.01)

        async def receive() -> Any:
            await left.wait()
            return {"type": "http.disconnect"}

        await stream({"type": "http"}, receive, send)
        return sorted(CLOSED)  # before the loop closes what was left open

    with asyncio.Runner(loop_factory=Quick) as runner:
        closed = runner.run(main())
    assert closed == ["answer", "events"]
    return bodies


def test_events_and_their_end() -> None:
    stream = EventStream(events(), 0, lambda: CLOSED.append("answer"))
    assert sent(stream) == ["one", "two", ""]


@pytest.mark.parametrize(
    ("pause", "comments"), [(0.01, 0), (0.03, 1), (0.05, 2)], ids=["busy", "slow", "slower"]
)
def test_silence_is_broken_by_comments(pause: float, comments: int) -> None:
    """One after each so many seconds in which nothing was sent, and none between events that come
    sooner."""
    bodies = sent(EventStream(events(pause), 0.02, lambda: CLOSED.append("answer")))
    asked = [KEEP_ALIVE] * comments
    assert bodies == [*asked, "one", *asked, "two", ""]


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_everything_is_closed_as_the_client_goes(pause: float) -> None:
    stream = EventStream(events(pause), 0, lambda: CLOSED.append("answer"))
    assert sent(stream, leave_after=1) == ["one"]


@pytest.mark.parametrize("before", ["one", None])
def test_an_error_in_the_middle_is_an_event(before: str | None) -> None:
    """Also where nothing but a comment was sent."""

    async def broken() -> AsyncGenerator[str]:
        try:
            if before is not None:
                yield before
            await asyncio.sleep(0.05)
            raise ApiError(500, "It broke.")
        finally:
            CLOSED.append("events")

    bodies = sent(EventStream(told(broken()), 0.02, lambda: CLOSED.append("answer")))
    assert KEEP_ALIVE in bodies
    *first, error, done, end = [body for body in bodies if body != KEEP_ALIVE]
    assert first == ([] if before is None else [before]) and (done, end) == (DONE, "")
    assert error.startswith('data: {"error":{"message":"It broke."')


def test_a_bug_in_the_middle_is_an_event_too() -> None:
    """The client isn't left without an end; the log gets the error."""

    async def broken() -> AsyncGenerator[str]:
        yield "one"
        raise RecursionError

    parts: list[str] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b"").decode())

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(broken(), 0, lambda: None)
    with pytest.raises(RecursionError):
        asyncio.run(stream({"type": "http"}, receive, send))
    _, one, error, done, end = parts
    assert (one, done, end) == ("one", DONE, "") and "failed by RecursionError" in error


def test_an_error_before_all_else_is_an_answer_of_its_own() -> None:
    async def broken() -> AsyncGenerator[str]:
        await asyncio.sleep(0)
        raise ApiError(503, "Not now.", headers={"retry-after": "1"})
        yield ""

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(told(broken()), 0, lambda: None)
    asyncio.run(stream({"type": "http"}, receive, send))
    start, rest = sent
    assert start["status"] == 503 and (b"retry-after", b"1") in start["headers"]
    assert b"Not now." in rest["body"]


def test_work_for_nobody_is_cancelled() -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(True)

    class Leaving:
        async def receive(self) -> dict[str, str]:
            return {"type": "http.disconnect"}

    async def main() -> None:
        with pytest.raises(Gone):
            await while_there(Leaving(), work())  # type: ignore[arg-type]
        assert ended == [True]

    asyncio.run(main())


def test_what_was_told_is_not_told_again() -> None:
    known, sample = Told(), CompletionOutput(0)
    assert known.more(sample) is None
    sample.text, sample.token_ids = "ab", [1, 2]
    first = known.more(sample)
    assert first is not None and (first.text, first.tokens, first.opens) == ("ab", [1, 2], True)
    assert known.more(sample) is None
    sample.finish_reason = "stop"
    last = known.more(sample)
    assert last is not None and (last.text, last.tokens, last.opens) == ("", [], False)
    assert known.more(sample) is None


def test_a_token_without_a_text_is_told_first() -> None:
    """As a part of a character, whose text comes later."""
    known, sample = Told(), CompletionOutput(0, token_ids=[1])
    first = known.more(sample)
    sample.text, sample.token_ids = "é", [1, 2]
    second = known.more(sample)
    assert first is not None and (first.text, first.opens) == ("", True)
    assert second is not None and (second.text, second.opens) == ("é", False)


def test_an_answer_that_fails_is_closed() -> None:
    """Its requests would go on for nobody."""

    class Failing:
        async def whole(self) -> dict[str, Any]:
            raise ApiError(500, "It broke.")

        async def receive(self) -> None:
            await asyncio.Event().wait()

    closed: list[bool] = []
    answer: Any = Failing()
    with pytest.raises(ApiError):
        asyncio.run(respond(answer, answer, False, 0, lambda: closed.append(True)))
    assert closed == [True]


def test_an_event_is_one_line() -> None:
    """Also for clients that split texts as Python does, of which httpx's `iter_lines` is one."""
    data = {"text": "a\u2028b\x85c\u2029d\x0be\nf"}
    line, empty = event(data).splitlines()
    assert json.loads(line.removeprefix("data: ")) == data and empty == ""
