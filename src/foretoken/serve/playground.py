"""GET /: a page to try the model in. It is one file, and asks this server only."""

from __future__ import annotations

import base64
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_SCRIPTS = ("markdown.js", "conversations.js", "stream.js", "answer.js", "main.js")
_STYLE, _SCRIPT = "<!--style-->", "/*script*/"  # where they stand in page.html


async def playground(_: Request) -> Response:
    """The page. A browser that it is in runs no other script and asks no other server."""
    text, policy = page()
    return HTMLResponse(text, headers={"content-security-policy": policy})


@cache
def page() -> tuple[str, str]:
    """The page, and its content security policy."""
    style = _part("style.css")
    script = "\n".join(_part(name) for name in _SCRIPTS)
    text = _part("page.html").replace(_STYLE, style).replace(_SCRIPT, script)
    policy = {
        "default-src": "'none'",
        "script-src": _only(script),
        "style-src": _only(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return text, "; ".join(f"{name} {allowed}" for name, allowed in policy.items())


def _part(name: str) -> str:
    return files("foretoken.serve").joinpath("page", name).read_text(encoding="utf-8")


def _only(text: str) -> str:
    """A policy's source for this text and no other."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
