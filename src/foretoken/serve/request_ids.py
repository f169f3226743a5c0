"""`X-Request-Id`: what a request came with, or a new one, in every answer."""

from __future__ import annotations

import re
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SOUND = re.compile(r"[\w.:=+/@-]{1,128}", re.ASCII)

HEADER = "x-request-id"


class RequestIds:
    """Gives each answer its request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        name = given if _SOUND.fullmatch(given) else uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        await self._app(scope, receive, named)
