"""Errors as OpenAI's clients read them: a status, and a body with one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
RETRY = {"Retry-After": "1"}
"""For what may be served a second later; OpenAI's clients then ask again by themselves."""

FINAL = {"x-should-retry": "false"}
"""For what would fail again; OpenAI's clients repeat any other 5xx."""


class ApiError(Exception):
    """What a client is told, with an HTTP status. param: the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.headers = dict(headers or {})


def body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    kind = _KINDS.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def response(error: ApiError) -> JSONResponse:
    """The answer that tells an error."""
    told = body(error.status, error.message, error.param)
    return JSONResponse(told, error.status, error.headers)


def unexpected(error: Exception) -> str:
    """What a client is told of an error that nobody foresaw."""
    return f"The server failed by {type(error).__name__}; its log says where."


def failed(message: str) -> ApiError:
    """A request that was begun and has failed: it would fail again."""
    return ApiError(500, message, headers=FINAL)
