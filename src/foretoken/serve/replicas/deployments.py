"""The two deployments of Ray Serve: the front, and a model's replicas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.types import Message

from foretoken.async_llm import AsyncLLM
from foretoken.llm import LLM
from foretoken.serve.app import application
from foretoken.serve.errors import ApiError
from foretoken.serve.replicas.asked import Asked
from foretoken.serve.replicas.front import Lost, front
from foretoken.serve.replicas.served import answered
from foretoken.serve.settings import ServerSettings

_SOON = 5.0  # seconds that a replica has to say how it is


class Replica:
    """One of several servers of a model, as a Ray actor. The front has checked keys and origins."""

    def __init__(self, make: Callable[[], LLM], settings: ServerSettings) -> None:
        rank: int = serve.get_replica_context().rank.rank
        self._llm = AsyncLLM(make())
        own = replace(settings, api_keys=(), allowed_origins=(), engine=rank)
        self._app = application(self._llm, own)

    async def answer(self, asked: Asked) -> AsyncGenerator[Message]:
        """The answer in ASGI's messages. Whoever doesn't read on ends it."""
        async with aclosing(answered(self._app, asked)) as messages:
            async for message in messages:
                yield message

    async def check_health(self) -> None:
        """Called by Ray, which replaces a replica that raises."""
        await self._llm.check_health()

    async def healthy(self) -> bool:
        """Whether requests can be served."""
        await self._llm.check_health()
        return True

    async def load(self) -> tuple[int, int, int]:
        """Its number; requests that run, and that wait."""
        return (self._server.settings.engine, *self._llm.load)

    async def metrics(self) -> bytes:
        """Its page for Prometheus."""
        page: bytes = self._server.metrics.text()
        return page

    async def reset_prefix_cache(self) -> bool:
        """Forget what caches have of earlier texts."""
        return await self._llm.reset_prefix_cache()

    @property
    def _server(self) -> Any:
        return self._app.state.server


class Front:
    """The server before the replicas, which Ray's own HTTP proxy passes requests to."""

    def __init__(self, replica: DeploymentHandle, settings: ServerSettings) -> None:
        self._app = front(RayReplicas(replica), settings)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Asked for by Ray."""
        return self._app

    async def drain(self, patience: float) -> None:
        """Take no more requests, and wait for those that run."""
        await self._app.state.passing.drain(patience)


class RayReplicas:
    """`Replicas` that Ray keeps, behind its handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._asking = handle.options(method_name="answer", stream=True)

    async def ask(self, asked: Asked) -> AsyncGenerator[Message]:
        """One of them answers; which one the router says."""
        answer = self._asking.remote(asked)
        try:
            async for message in answer:
                yield message
        except RayActorError as error:
            raise Lost from error
        finally:
            answer.cancel()

    async def all(self, what: str) -> list[Any]:
        """What each one says that answers within five seconds. Raises `ApiError`, 503, where one
        doesn't."""
        try:
            said = await self._handle.broadcast(what).results_async(
                timeout_s=_SOON, return_exceptions=True
            )
        except DeploymentUnavailableError:
            return []
        except TimeoutError as error:
            raise ApiError(503, "A replica doesn't answer; it may be starting.") from error
        return [answer for answer in said if not isinstance(answer, BaseException)]
