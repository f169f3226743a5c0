"""What passes between the front and Ray, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("ray.serve", exc_type=ImportError)

from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from foretoken.serve.errors import ApiError
from foretoken.serve.replicas import deployments
from foretoken.serve.replicas.asked import Asked
from foretoken.serve.replicas.deployments import RayReplicas
from foretoken.serve.replicas.front import Lost

ASKED = Asked("POST", "/v1/completions", b"", "", (), b"{}", "")
GONE = DeploymentUnavailableError(DeploymentID(name="replica"))


class Answer:
    """What Ray gives back for a request: messages, an error, or, where there is neither, nothing
    for ever."""

    def __init__(self, *coming: dict[str, Any] | Exception) -> None:
        self._coming, self._hangs, self.cancelled = list(coming), not coming, False

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._hangs:
            await asyncio.Future()
        if not self._coming:
            raise StopAsyncIteration
        next_ = self._coming.pop(0)
        if isinstance(next_, Exception):
            raise next_
        return next_

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Ray's handle of the replicas. answer: to a request; said: to each broadcast, in turn."""

    def __init__(self, answer: Answer | None = None, *said: list[Any] | Exception) -> None:
        self._answer, self._said = answer, list(said)

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, _: Asked) -> Any:
        return self._answer

    def broadcast(self, _: str) -> Handle:
        return self

    async def results_async(self, **_: Any) -> list[Any]:
        said = self._said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def _asked(handle: Any) -> list[Any]:
    async def messages() -> list[Any]:
        async with asyncio.timeout(5):
            return [message async for message in RayReplicas(handle).ask(ASKED)]

    return asyncio.run(messages())


def _all(*said: list[Any] | Exception) -> list[Any]:
    handle: Any = Handle(None, *said)
    return asyncio.run(RayReplicas(handle).all("healthy"))


def test_that_a_request_was_taken_is_no_part_of_its_answer() -> None:
    messages = [{"type": "http.response.start"}, {"type": "http.response.body"}]
    assert _asked(Handle(Answer({"type": "foretoken.taken"}, *messages))) == messages


def test_a_replica_that_hangs_loses_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once another one answers; until then it waits, as where all are being started."""
    monkeypatch.setattr(deployments, "_SOON", 0.01)
    handle = Handle(answer := Answer(), [], GONE, [True])
    with pytest.raises(Lost):
        _asked(handle)
    assert answer.cancelled and not handle._said


def test_where_none_can_be_started_requests_are_refused() -> None:
    with pytest.raises(ApiError) as refused:
        _asked(Handle(Answer(GONE)))
    assert refused.value.status == 503 and refused.value.headers["Retry-After"]


def test_one_that_hangs_keeps_the_others_from_nothing() -> None:
    """By the second time the router leaves it out."""
    assert _all([True, ValueError()]) == [True]
    assert _all(TimeoutError(), [True]) == [True]
    assert _all(GONE) == []
    with pytest.raises(ApiError) as refused:
        _all(TimeoutError(), TimeoutError())
    assert refused.value.status == 503
