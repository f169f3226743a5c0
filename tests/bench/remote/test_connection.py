"""A request to a server that may do anything: it ends, and says what was wrong."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import pytest

from fake_server import ADDRESS, KEY, WORD, Answering, answering, asked, endless, head, serving
from foretoken.bench.remote import address, connection
from foretoken.bench.remote.connection import Limits, Unanswered
from foretoken.bench.remote.openai import Endpoint


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key goes to the server that was named, and to no other."""
    monkeypatch.setenv(address.KEY, KEY)
    with serving() as (other, there):

        def redirect(to: BaseHTTPRequestHandler) -> None:
            head(to, status, Location=f"{there.base_url}/chat/completions?key={KEY}&code=once")

        with answering(redirect) as url:
            error = asked(url).error
    assert other.asked == []
    assert error is not None and re.match(ADDRESS + f"redirects .*status {status}", error)
    assert there.root in error and KEY not in error and "once" not in error


def _drip(to: BaseHTTPRequestHandler, text: bytes) -> None:
    while True:
        for byte in text:
            to.wfile.write(bytes([byte]))
            time.sleep(0.02)


def _drip_headers(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    _drip(to, b"x")


def _drip_pieces(to: BaseHTTPRequestHandler) -> None:
    head(to)
    _drip(to, b": nothing\n\n")


def _drip_chunks(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    to.wfile.write(b"Transfer-Encoding: chunked\r\n\r\n")
    _drip(to, b"0")


def _drip_error(to: BaseHTTPRequestHandler) -> None:
    head(to, 500)
    _drip(to, b"x")


@pytest.mark.parametrize("drip", [_drip_headers, _drip_pieces, _drip_chunks, _drip_error])
def test_a_request_ends_by_its_deadline(drip: Answering) -> None:
    """However often a little arrives."""
    began = time.perf_counter()
    with answering(drip) as url:
        error = asked(url, timeout=5, total=0.4).error
        assert time.perf_counter() - began < 30
    assert error is not None and re.match(ADDRESS + r"took longer than 0\.4 s", error)


def test_looking_for_the_model_ends_too() -> None:
    """And reading the counters."""
    with answering(_drip_error) as url:
        endpoint = Endpoint(url, "m", timeout=0.3, total=0.4)
        assert endpoint.counters() == {}

    def silent(to: BaseHTTPRequestHandler) -> None:
        time.sleep(1)

    with answering(silent) as url:
        error = asked(url, timeout=0.2).error
    assert error is not None and re.match(ADDRESS + r"sent nothing for 0\.2 s", error)


def test_a_stream_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of events that are all good, too."""
    monkeypatch.setattr(connection, "MOST_BYTES", 2**20)
    with answering(lambda to: endless(to, b"", WORD * 999)) as url:
        error = asked(url).error
    assert error is not None and re.match(ADDRESS + "sent more than 1,048,576 bytes", error)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "closed the connection before"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "doesn't answer by the rules of HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200, "doesn't answer by the rules of HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "doesn't answer by the rules of HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "answered with text/plain and not with a stream"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "answered with status 204: No Content"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nfff\r\ndata: {",
            "closed the connection before",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            "closed the connection before",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n"
            + WORD,
            "closed the connection before",
        ),
    ],
    ids=["nothing", "ssh", "headers", "header", "type", "204", "chunk", "chunk size", "length"],
)
def test_a_server_that_speaks_otherwise(answer: bytes, told: str) -> None:
    """No status line, too many headers, another type, a connection closed too early."""

    def raw(to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(answer)

    with answering(raw) as url:
        error = asked(url).error
    assert error is not None and re.match(ADDRESS + told, error), error


def test_the_nearer_limit_decides() -> None:
    """How long the next bytes may take, and what is said where they took longer."""
    assert Limits(5.0, 60.0).left() == 5.0 and Limits(60.0, 5.0).left() <= 5.0
    assert str(Limits(5.0, 60.0).expired()) == "sent nothing for 5 s"
    over = Limits(60.0, 0.0)
    assert str(over.expired()) == "took longer than 0 s"
    with pytest.raises(Unanswered, match="took longer than 0 s"):
        over.left()


def test_what_a_request_says_of_itself() -> None:
    """Which of a machine's servers it is for, and that the answer must not be compressed."""
    seen = dict[str, str]()

    def note(to: BaseHTTPRequestHandler) -> None:
        seen.update(to.headers.items())
        head(to)
        to.wfile.write(WORD + b"data: [DONE]\n\n")

    with answering(note) as url:
        assert asked(url).text == "word"
    assert seen["Host"] == url.split("//")[1]
    assert seen["Accept-Encoding"] == "identity"


def test_a_secure_connection_is_to_the_server_that_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the standard library makes sure of, before anything is sent."""
    names: list[str] = []

    @contextmanager
    def wrap_socket(plain: Any, server_hostname: str) -> Iterator[Any]:
        names.append(server_hostname)
        yield plain

    context = SimpleNamespace(wrap_socket=wrap_socket)
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)

    def answer(to: BaseHTTPRequestHandler) -> None:
        head(to)
        to.wfile.write(WORD + b"data: [DONE]\n\n")

    with answering(answer) as url:
        assert asked(url).error is None and names == []
        assert asked(url.replace("http:", "https:")).error is None
    assert names == ["127.0.0.1"]
