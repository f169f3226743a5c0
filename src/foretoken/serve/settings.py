"""How a server answers; the model and the address are not in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretoken.errors import ForetokenError, shown
from foretoken.serve.tools import format_named

METRICS = ("none", "summary")
"""What an answer tells of its own decoding."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How a server answers.

    Attributes:
        names: what the model is called; the first is the name in answers.
        api_keys: what `Authorization: Bearer …` may carry; none lets everybody in.
        ignore_unknown_fields: whether fields that aren't known are left out, and not refused.
        keep_alive_interval: seconds of silence after which a stream gets a comment; 0 is never.
        force_include_usage: whether every stream ends with its usage.
        request_metrics: "summary" puts times and acceptance into answers, "none" nothing.
        response_role: the role of chat answers.
        defaults: sampling parameters of requests that don't name them.
        max_new_tokens: of an answer at most, whatever a request asks for.
        metrics_prefix: what the names in /metrics begin with.
        allowed_origins: the web pages that may ask, "*" for any. allow_credentials: whether with
            cookies.
        tool_call_parser: how the model writes calls of functions, a name in `tools.FORMATS`; None
            offers it none.
        max_body: bytes of a request's body.
        engine: the server's number among replicas, a label in /metrics.
    """

    names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    ignore_unknown_fields: bool = False
    keep_alive_interval: float = 15.0
    force_include_usage: bool = False
    request_metrics: str = "summary"
    response_role: str = "assistant"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    metrics_prefix: str = "foretoken"
    allowed_origins: tuple[str, ...] = ()
    allow_credentials: bool = False
    tool_call_parser: str | None = None
    max_body: int = 2**26
    engine: int = 0

    def bounded(self, most: int | None) -> int | None:
        """So many tokens, or fewer where answers are shorter."""
        both = [each for each in (most, self.max_new_tokens) if each is not None]
        return min(both, default=None)

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise ForetokenError("A served model needs a name; give --served-model-name.")
        if not all(self.api_keys):
            raise ForetokenError("An API key is empty; give one with at least one character.")
        if not all(k.isascii() and k.isprintable() and k == k.strip() for k in self.api_keys):
            raise ForetokenError(
                "An API key has a line break, a letter outside of ASCII or a space at an end, so "
                "that no client could send it; give it without."
            )
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", self.metrics_prefix):
            raise ForetokenError(
                f"The metrics' prefix is {shown(self.metrics_prefix)}; it must be a letter or _, "
                "and letters, digits and _ after it."
            )
        if self.tool_call_parser is not None:
            format_named(self.tool_call_parser, ())
        if self.allow_credentials and not self.allowed_origins:
            raise ForetokenError(
                "--allow-credentials does nothing alone; add --allowed-origins with the web pages."
            )
        if self.request_metrics not in METRICS:
            raise ForetokenError(
                f"The metrics of a request are {shown(self.request_metrics)}; they must be "
                f"{' or '.join(METRICS)}."
            )
