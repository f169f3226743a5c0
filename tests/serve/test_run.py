"""A server as a process: it starts, drains, and ends."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
import uvicorn

from foretoken import ForetokenError
from foretoken.serve import run
from foretoken.serve.run import _Server, listening


def test_a_taken_port() -> None:
    with (
        listening("127.0.0.1", 0) as taken,
        pytest.raises(ForetokenError, match="give another --host or --port"),
    ):
        taken.listen()
        listening("127.0.0.1", taken.getsockname()[1])


def test_small_parts_are_sent_at_once() -> None:
    """Not after 40 ms, when the client has acknowledged the part before: asyncio sees to it where a
    socket says that it is TCP's."""
    with listening("127.0.0.1", 0) as opened:
        assert opened.proto == socket.IPPROTO_TCP


def test_a_second_signal_ends_it() -> None:
    """Whichever the two are."""
    server = _Server(uvicorn.Config(lambda: None))
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and not server.force_exit
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit


def test_what_is_loaded_is_not_visited_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Python's collector, which would halt every stream meanwhile."""
    visited: list[int] = []
    patience: list[int | None] = []

    def noted(server: _Server, **_: object) -> None:
        visited.append(len(gc.get_objects()))
        patience.append(server.config.timeout_graceful_shutdown)

    monkeypatch.setattr(_Server, "run", noted)
    before = len(gc.get_objects())
    try:
        with listening("127.0.0.1", 0) as opened:
            run.serve(lambda: None, opened, patience=7, logs_requests=False)  # type: ignore[arg-type]
    finally:
        gc.unfreeze()
    assert visited[0] < before / 10 and patience == [7]


def test_it_drains() -> None:
    """What runs as SIGTERM comes is answered to its end."""
    command = [sys.executable, "-m", "foretoken", "serve", "mini", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stderr is not None
        said = (re.search(r"http:\S+", line) for line in server.stderr)
        url = next(filter(None, said), None)
        assert url is not None
        body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url[0]}/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        assert server.wait(30) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    finally:
        server.kill()
        server.wait()
