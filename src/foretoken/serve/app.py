"""The routes, as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version as installed
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretoken.async_llm import AsyncLLM
from foretoken.errors import ForetokenError, Overloaded
from foretoken.serve.auth import ApiKeys
from foretoken.serve.chat import chat
from foretoken.serve.completions import completions
from foretoken.serve.errors import FINAL, ApiError, response, unexpected
from foretoken.serve.limits import busy
from foretoken.serve.metrics import CONTENT_TYPE
from foretoken.serve.playground import playground
from foretoken.serve.request_ids import HEADER, RequestIds
from foretoken.serve.server import Server
from foretoken.serve.settings import ServerSettings
from foretoken.serve.streaming import Gone
from foretoken.serve.tokens import detokenize, tokenize


def application(llm: AsyncLLM, settings: ServerSettings) -> Starlette:
    """The server of a model. It shuts the model down as it ends."""
    server = Server(llm, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await llm.shutdown()

    app = Starlette(
        routes=_ROUTES,
        lifespan=lifespan,
        middleware=[Middleware(RequestIds), *middleware(settings)],
        exception_handlers=HANDLERS,
    )
    app.state.server = server
    return app


def middleware(settings: ServerSettings) -> list[Middleware]:
    """What lets requests in, from the outside in; preflights of web pages carry no key. What fails
    is answered inside of all of it."""
    layers = []
    if settings.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_credentials=settings.allow_credentials,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=[HEADER],
            )
        )
    if settings.api_keys:
        layers.append(Middleware(ApiKeys, keys=settings.api_keys))
    return [*layers, Middleware(Bugs)]


async def models(request: Request) -> Response:
    """The names that the model is served under."""
    server: Server = request.app.state.server
    data = [_card(server, name) for name in server.settings.names]
    return JSONResponse({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """One name."""
    server: Server = request.app.state.server
    name = request.path_params["name"]
    server.check_model(name)
    return JSONResponse(_card(server, name))


def _card(server: Server, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": server.started,
        "owned_by": "foretoken",
        "root": server.settings.names[0],
        "parent": None,
        "max_model_len": server.context,
        "method": server.llm.llm.method,
        "permission": [],
    }


async def health(request: Request) -> Response:
    """Empty, with 200 where requests can be served."""
    await request.app.state.server.check_health()
    return Response()


async def version(_: Request) -> Response:
    """Which foretoken this is."""
    return JSONResponse({"version": installed("foretoken")})


async def load(request: Request) -> Response:
    """How many requests there are."""
    counts = request.app.state.server.llm.load
    running, waiting = counts
    total = running + waiting
    return JSONResponse({"server_load": total, "running": running, "waiting": waiting})


async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(request.app.state.server.metrics.text(), media_type=CONTENT_TYPE)


async def reset_prefix_cache(request: Request) -> Response:
    """Forget what caches have of earlier texts."""
    await request.app.state.server.llm.reset_prefix_cache()
    return JSONResponse({"success": True})


_ROUTES = [
    Route("/", playground),
    Route("/v1/models", models),
    Route("/v1/models/{name:path}", model),
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/health", health),
    Route("/ping", health, methods=["GET", "POST"]),
    Route("/version", version),
    Route("/load", load),
    Route("/metrics", metrics),
    Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
]


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return response(error)


async def _refused(request: Request, error: Exception) -> Response:
    """What the engine won't serve, or not now."""
    if isinstance(error, Overloaded):
        request.app.state.server.metrics.rejected("queue_full")
        return response(busy(error))
    return response(ApiError(400, str(error)))


async def _by_status(_: Request, error: Exception) -> Response:
    """What the router refuses."""
    assert isinstance(error, HTTPException)
    told = {404: "There is no such path.", 405: "This path takes another method."}
    message = told.get(error.status_code, error.detail)
    return response(ApiError(error.status_code, message, headers=error.headers))


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _bug(_: Request, error: Exception) -> Response:
    """What we didn't expect: the log has its traceback."""
    return response(ApiError(500, unexpected(error), headers=FINAL))


class Bugs:
    """Answers what we didn't expect, where nothing has been answered yet. Starlette does so outside
    of the layers that give each answer its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if scope["type"] == "http" and not begun:
                answer = await _bug(Request(scope), error)
                await answer(scope, receive, send)
            raise  # into the log


HANDLERS: Mapping[Any, Any] = {
    ApiError: _told,
    ForetokenError: _refused,
    HTTPException: _by_status,
    Gone: _gone,
    ClientDisconnect: _gone,  # while it was sending its body
    Exception: _bug,  # of the layers themselves
}
