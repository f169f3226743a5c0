"""The two deployments of Ray Serve: the front, and a model's replicas."""

from __future__ import annotations

import asyncio
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
from foretoken.serve.errors import RETRY, ApiError
from foretoken.serve.replicas.asked import Asked
from foretoken.serve.replicas.front import Lost, front
from foretoken.serve.replicas.served import answered
from foretoken.serve.settings import ServerSettings

_SOON = 5.0  # seconds that a replica has to say how it is, or that it has taken a request
_TAKEN: Message = {"type": "foretoken.taken"}


class Replica:
    """One of several servers of a model, as a Ray actor. The front has checked keys and origins."""

    def __init__(self, make: Callable[[], LLM], settings: ServerSettings) -> None:
        rank: int = serve.get_replica_context().rank.rank
        self._llm = AsyncLLM(make())
        own = replace(settings, api_keys=(), allowed_origins=(), engine=rank)
        self._app = application(self._llm, own)

    async def answer(self, asked: Asked) -> AsyncGenerator[Message]:
        """That it was taken, and the answer in ASGI's messages. Whoever doesn't read on ends it."""
        yield _TAKEN
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
            await self._taken(answer)
            async for message in answer:
                yield message
        except RayActorError as error:
            raise Lost from error
        except DeploymentUnavailableError as error:  # no replica could be started any more
            raise ApiError(503, "No replica can serve now.", headers=RETRY) from error
        finally:
            answer.cancel()

    async def _taken(self, answer: Any) -> None:
        """Wait until a replica has taken the request; as long as none is up, Ray keeps it. Raises
        `Lost` where the one that was to have it hangs and another one answers."""
        taking = asyncio.ensure_future(anext(answer))
        try:
            while not (await asyncio.wait({taking}, timeout=_SOON))[0]:
                if any(await self.all("healthy")):
                    raise Lost
            taking.result()
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def all(self, what: str) -> list[Any]:
        """What each one says that answers. One that has just begun to hang is waited for, for five
        seconds; by then the router leaves it out. Raises `ApiError`, 503, where that isn't so."""
        for _ in range(2):
            try:
                said = await self._handle.broadcast(what).results_async(
                    timeout_s=_SOON, return_exceptions=True
                )
            except DeploymentUnavailableError:
                return []
            except TimeoutError:
                continue
            return [answer for answer in said if not isinstance(answer, BaseException)]
        raise ApiError(503, "A replica doesn't answer; it may be starting.", headers=RETRY)
