"""`X-Request-Id`: what a request came with, or a new one, in every answer, whose id it ends."""

from __future__ import annotations

import re
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SOUND = re.compile(r"[\w.:=+/@-]{1,128}", re.ASCII)

HEADER = "x-request-id"


def given(headers: Headers) -> str | None:
    """The id that a request came with, unless it is none that may stand in a header and a log."""
    name = headers.get(HEADER, "")
    return name if _SOUND.fullmatch(name) else None


def answer_id(kind: str, headers: Headers, asked: str | None) -> str:
    """That of an answer: the header's before the body's, as in vLLM, so that one id is in the logs
    of all that a request passes."""
    return f"{kind}-{given(headers) or asked or uuid4().hex}"


class RequestIds:
    """Gives each answer its request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = given(Headers(scope=scope)) or uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        await self._app(scope, receive, named)
