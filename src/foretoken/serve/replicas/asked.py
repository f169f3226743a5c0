"""A request on its way to a replica."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from foretoken.serve.limits import whole_body

WRITING = ("/v1/chat/completions", "/v1/completions")
"""The paths whose answers are written."""

_BEGINNING = 2**16  # characters of a prompt that are compared


@dataclass(frozen=True)
class Asked:
    """A request, as a replica gets it. text: what its prompt begins with, for the router."""

    method: str
    path: str
    query: bytes
    root_path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    text: str

    def scope(self) -> Scope:
        """It as ASGI has it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": self.root_path,
            "query_string": self.query,
            "headers": list(self.headers),
            "server": None,
            "client": None,
        }


async def asked(request: Request, most: int, seed: Callable[[], int]) -> Asked:
    """Read a request. One that names no seed gets one, so that any replica writes the same text.

    Raises `ApiError` for a body above `most` bytes. What else is wrong with it the replica tells.
    """
    raw = await whole_body(request, most)
    text = ""
    if request.method == "POST" and request.url.path.endswith(WRITING):
        raw, text = _prepared(raw, seed)
    scope = request.scope
    return Asked(
        method=request.method,
        path=scope["path"],
        query=scope["query_string"],
        root_path=scope.get("root_path", ""),
        headers=tuple(scope["headers"]),
        body=raw,
        text=text,
    )


def _prepared(raw: bytes, seed: Callable[[], int]) -> tuple[bytes, str]:
    """The body with a seed, and what its prompt begins with."""
    try:
        body = json.loads(raw.decode())
        if not isinstance(body, dict):
            return raw, ""
        if body.get("seed") in (None, -1) and not _several(body.get("prompt")):
            raw = json.dumps(body | {"seed": seed()}).encode()
        return raw, _text(body)
    except (ValueError, RecursionError):  # no JSON, or none that can be read: the replica refuses
        return raw, ""


def _several(prompt: Any) -> bool:
    """Whether these are several prompts: with one seed, equal ones would have equal answers."""
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _text(body: dict[str, Any]) -> str:
    """What a replica's cache would have to hold, in the order in which templates write it."""
    parts = [body.get(name) for name in ("cache_salt", "tools", "messages", "prompt")]
    return "".join(json.dumps(part) for part in parts if part)[:_BEGINNING]
