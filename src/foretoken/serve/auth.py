"""API keys, compared in constant time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from hashlib import sha256
from secrets import compare_digest

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from foretoken.serve.errors import ApiError, response

OPEN = ("/", "/health", "/ping", "/version", "/metrics")
"""Paths that need no key: what monitors read, and a page that asks for one."""


class ApiKeys:
    """Lets requests through that carry one of the keys."""

    def __init__(self, app: ASGIApp, keys: Seq[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._passes(scope):
            await self._app(scope, receive, send)
            return
        refused = ApiError(401, "The API key is missing or wrong; send Authorization: Bearer KEY.")
        await response(refused)(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] == "OPTIONS" or path in OPEN:
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = sha256(given.strip().encode()).digest()
        known = [compare_digest(digest, other) for other in self._digests]  # all, whichever it is
        return scheme.lower() == "bearer" and any(known)
