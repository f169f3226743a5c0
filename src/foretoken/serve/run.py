"""Serves until it is told to end, then lets what runs come to its end."""

from __future__ import annotations

import gc
import logging
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from foretoken.errors import ForetokenError


def listening(host: str, port: int) -> socket.socket:
    """A socket on this address; port 0 takes a free one. Raises `ForetokenError` where it is
    taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its name: asyncio sends small parts at once only where a socket says that it is TCP's, and
    # each event of a stream would wait for the client's delayed acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise ForetokenError(
            f"{host} port {port} can't be served: {error.strerror or error}; give another --host "
            "or --port."
        ) from error
    return made


def serve(
    app: Starlette, opened: socket.socket, *, patience: int, logs_requests: bool, **options: Any
) -> None:
    """Serve on an open socket until SIGINT or SIGTERM; a second one ends at once.

    patience: the seconds that running answers get at the end. options: uvicorn's others.
    """
    config = uvicorn.Config(
        app,
        timeout_graceful_shutdown=patience,
        log_level=logging.INFO if logs_requests else logging.WARNING,
        access_log=logs_requests,
        **options,
    )
    gc.collect()
    gc.freeze()  # what is loaded stays to the end; visiting it halts every stream for 0.1 s
    _Server(config).run(sockets=[opened])


class _Server(uvicorn.Server):
    """One that any second signal ends, as uvicorn's own is by SIGINT alone."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
