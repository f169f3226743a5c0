"""What a replica's own server answers, as messages that can be sent on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp, Message

from foretoken.serve.replicas.asked import Asked

_log = logging.getLogger(__name__)


async def answered(app: ASGIApp, asked: Asked) -> AsyncGenerator[Message]:
    """What an ASGI application answers; it is cancelled where nobody reads on."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    bodies = iter([{"type": "http.request", "body": asked.body, "more_body": False}])

    async def receive() -> Message:
        for message in bodies:
            return message
        return await asyncio.Future()  # whoever goes cancels all of it

    running = asyncio.ensure_future(app(asked.scope(), receive, messages.put))
    running.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            yield message
        if not running.cancelled() and (error := running.exception()) is not None:
            _log.error("A request failed", exc_info=error)  # its client has been told
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
