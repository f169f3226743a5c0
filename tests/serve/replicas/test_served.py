"""A replica's own server: whoever doesn't read on ends a request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from foretoken.serve.replicas.asked import Asked
from foretoken.serve.replicas.served import answered

ASKED = Asked("POST", "/", b"", "", (), b"body", "")


async def _read(app: Any, most: int) -> list[Message]:
    messages = answered(app, ASKED)
    found = []
    async for message in messages:
        found.append(message)
        if len(found) == most:
            break
    await messages.aclose()
    return found


def test_the_body_arrives_and_the_client_stays() -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        body = await receive()
        waiting = asyncio.ensure_future(receive())
        done, _pending = await asyncio.wait((waiting,), timeout=0.05)
        waiting.cancel()
        await send({"body": body["body"], "gone": bool(done)})

    assert asyncio.run(_read(app, 9)) == [{"body": b"body", "gone": False}]


def test_whoever_goes_ends_it() -> None:
    ended: list[bool] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        try:
            while True:
                await send({"n": len(ended)})
                await asyncio.sleep(0.001)
        finally:
            ended.append(True)

    assert len(asyncio.run(_read(app, 3))) == 3 and ended == [True]


def test_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The application's client has been told by then."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"n": 1})
        raise KeyError("odd")

    assert asyncio.run(_read(app, 9)) == [{"n": 1}]
    assert "KeyError" in caplog.text
