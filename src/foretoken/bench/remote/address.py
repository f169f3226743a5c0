"""A server's address, and what proves to it who asks: a key, or a login in the address.

Secrets are sent to the server and are in nothing that is shown or stored.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from foretoken.errors import ForetokenError, shown

KEY = "OPENAI_API_KEY"
"""The environment variable with the key, where a server wants one."""

_HIDDEN = "***"
_LONG = 8  # characters; a shorter secret is hidden in errors only, where it stands as a word
_SENDABLE = re.compile(r"[!-~]*")  # in a header or a path: ASCII without spaces and controls


@dataclass(frozen=True)
class Address:
    """host: with the port, as sentences name it. path: without /v1. query, headers: sent with each
    request; they hold the secrets."""

    scheme: str
    name: str
    port: int
    host: str
    path: str
    query: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    _secrets: tuple[str, ...] = field(repr=False)

    @property
    def root(self) -> str:
        """What may be shown: no login, no query, no /v1."""
        return f"{self.scheme}://{self.host}{self.path}"

    def target(self, path: str) -> str:
        """What is asked for in a request's first line."""
        return self.path + path + (f"?{self.query}" if self.query else "")

    def redacted(self, text: str) -> str:
        """The text without secrets; those too short to be told from its words stay."""
        return _without(text, (re.escape(one) for one in self._secrets if len(one) >= _LONG))

    def redacted_error(self, text: str) -> str:
        """The same for what a server says is wrong, also without short secrets."""
        words = (rf"(?<!\w){re.escape(one)}(?!\w)" for one in self._secrets)
        return _without(self.redacted(text), words)


def read_address(url: str, key: str | None = None) -> Address:
    """A URL taken apart, with /v1 or without. A key goes before a login in the URL.

    Raises `ForetokenError`, without their secrets, for a URL or key that can't be used.
    """
    parts = _split(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    login = [unquote(word or "") for word in (parts.username, parts.password)]
    headers, token = {}, ""
    if key:
        headers["Authorization"] = f"Bearer {_checked(key)}"
    elif any(login):
        token = b64encode(":".join(login).encode()).decode()
        headers["Authorization"] = f"Basic {token}"
    values = [value for _, value in parse_qsl(parts.query) if len(value) >= _LONG]
    return Address(
        parts.scheme,
        str(parts.hostname),
        port,
        parts.netloc.rpartition("@")[2],
        parts.path.rstrip("/").removesuffix("/v1"),
        parts.query,
        headers,
        _forms([key or "", token, *login, *values]),
    )


def public(url: str) -> str:
    """A URL as it may be stored. Raises `ForetokenError` where it is none."""
    address = read_address(url)
    return address.root + ("/v1" if urlsplit(url).path.rstrip("/").endswith("/v1") else "")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = (
            url.isprintable()
            and parts.scheme in ("http", "https")
            and parts.port != 0
            and bool(parts.hostname)
            and _SENDABLE.fullmatch((parts.hostname or "").encode("idna").decode())
            and _SENDABLE.fullmatch(parts.path + parts.query)
        )
    except ValueError:  # of the port, of brackets, of a name with an empty part
        good = False
    if not good:
        secret = not {"@", "?"}.isdisjoint(url)
        given = "the one that was given" if secret else shown(url)
        raise ForetokenError(f"A server's address is like http://localhost:8000/v1, not {given}.")
    return parts


def _checked(key: str) -> str:
    """The key, if a header can carry it."""
    fitting = _SENDABLE.match(key)
    if fitting is not None and fitting.end() < len(key):
        raise ForetokenError(
            f"{KEY} can't be sent: its character {fitting.end() + 1} is a line break, a space or "
            "outside of ASCII; set the key again without it."
        )
    return key


def _forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Secrets as they are and as URLs write them, the longest first."""
    forms = {form for one in secrets if one for form in (one, quote(one), quote(one, safe=""))}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _without(text: str, patterns: Iterable[str]) -> str:
    joined = "|".join(patterns)
    return re.sub(joined, _HIDDEN, text) if joined else text
