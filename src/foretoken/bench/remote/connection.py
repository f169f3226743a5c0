"""One HTTP request to a server that may do anything: bounded in time and in bytes.

By the standard library's reader of responses, which adds nothing to the time: no retries, no
proxies, no redirects, and the connection is made before the clock starts.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from time import perf_counter
from typing import Any, cast

from foretoken.bench.remote.address import Address

MOST_BYTES = 2**26
"""Of an answer; a stream of 128,000 tokens has about 2**25."""

_AT_ONCE = 2**16  # bytes


class Unanswered(Exception):
    """No answer came. The text goes on from the server's name: "sent nothing for 10 s"."""


@dataclass
class Limits:
    """wait: most seconds until the next bytes. total: until the end, from now on."""

    wait: float
    total: float

    def __post_init__(self) -> None:
        self._end = perf_counter() + self.total

    def left(self) -> float:
        """Seconds that the next bytes may take. Raises `Unanswered` after the last one."""
        left = self._end - perf_counter()
        if left <= 0:
            raise Unanswered(f"took longer than {self.total:g} s")
        return min(self.wait, left)

    def expired(self) -> Unanswered:
        """The error of a wait that was as long as `left` said."""
        over = self._end <= perf_counter()
        told = f"took longer than {self.total:g}" if over else f"sent nothing for {self.wait:g}"
        return Unanswered(f"{told} s")


class Connection:
    """A connection for one request, open while `connected` lasts."""

    def __init__(self, address: Address, limits: Limits, opened: socket.socket) -> None:
        self._address, self._limits, self._socket = address, limits, opened

    def ask(self, method: str, path: str, body: bytes = b"") -> HTTPResponse:
        """Send the request and read the head of the answer.

        Raises `Unanswered` for a redirect: the key is for nobody else.
        """
        headers = {
            "Host": self._address.host.encode("idna").decode(),
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self._address.headers,
        }
        lines = [f"{method} {self._address.target(path)} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._socket.settimeout(self._limits.left())
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        response = HTTPResponse(cast(socket.socket, _Reader(self._socket, self._limits)))
        response.begin()
        if 300 <= response.status < 400:
            place = self._address.redacted_error(response.headers.get("Location") or "nowhere")
            raise Unanswered(
                f"redirects to {place.partition('?')[0][:200]} (status {response.status}), where "
                "no key is sent; give that address if it is the server's"
            )
        return response


@contextmanager
def connected(address: Address, limits: Limits) -> Iterator[Connection]:
    """A connection, closed at the end. What fails within is raised as `Unanswered`."""
    try:
        with _opened(address, limits) as opened:
            yield Connection(address, limits, opened)
    except TimeoutError as error:
        raise limits.expired() from error
    except (IncompleteRead, RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
        raise Unanswered("closed the connection before its answer ended") from error
    except OSError as error:
        raise Unanswered(f"can't be reached ({error.strerror or error})") from error
    except HTTPException as error:
        raise Unanswered("doesn't answer by the rules of HTTP") from error


def pieces(response: HTTPResponse) -> Iterator[bytes]:
    """The answer's body as it arrives. Raises `Unanswered` where it is too long or cut short."""
    total = 0
    while piece := response.read1(_AT_ONCE):
        total += len(piece)
        if total > MOST_BYTES:
            raise Unanswered(f"sent more than {MOST_BYTES:,} bytes")
        yield piece
    if response.length:
        raise Unanswered("closed the connection before its answer ended")


@contextmanager
def _opened(address: Address, limits: Limits) -> Iterator[socket.socket]:
    plain = socket.create_connection((address.name, address.port), limits.left())
    with plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.scheme == "http":
            yield plain
            return
        plain.settimeout(limits.left())
        with ssl.create_default_context().wrap_socket(plain, server_hostname=address.name) as safe:
            yield safe


class _Reader(io.RawIOBase):
    """What a response reads from: each wait for bytes is limited."""

    def __init__(self, opened: socket.socket, limits: Limits) -> None:
        self._socket, self._limits = opened, limits

    def makefile(self, mode: str) -> io.BufferedReader:
        """The response's side of the connection, as it asks a socket for it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(self._limits.left())
        return self._socket.recv_into(buffer)
