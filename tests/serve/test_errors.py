"""Errors as clients read them."""

from __future__ import annotations

import json

from foretoken.serve.errors import ApiError, body, failed, response


def test_bodies() -> None:
    told = response(ApiError(404, "Not here.", "model", {"a": "b"}))
    assert told.status_code == 404 and told.headers["a"] == "b"
    error = {"message": "Not here.", "type": "NotFoundError", "param": "model", "code": 404}
    assert json.loads(bytes(told.body)) == {"error": error}
    assert body(418, "x")["error"]["type"] == "BadRequestError"
    assert body(599, "x")["error"]["type"] == "InternalServerError"
    assert failed("x").headers == {"x-should-retry": "false"}
