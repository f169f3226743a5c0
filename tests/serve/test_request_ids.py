"""X-Request-Id."""

from __future__ import annotations

import httpx


def test_each_answer_has_an_id(http: httpx.Client) -> None:
    first, second = (http.get("/version").headers["x-request-id"] for _ in range(2))
    assert first != second
    given = {"X-Request-Id": "from-a-proxy:7"}
    assert http.get("/nothing", headers=given).headers["x-request-id"] == "from-a-proxy:7"
    strange = http.get("/version", headers={"X-Request-Id": "a b<c>"}).headers["x-request-id"]
    assert strange != "a b<c>" and strange
