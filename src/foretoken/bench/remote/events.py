"""The data of server-sent events (WHATWG HTML, section 9.2.6), up to OpenAI's [DONE].

Lines end with LF or CRLF. Fields other than data, and comments, say nothing that is needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from foretoken.bench.remote.connection import Unanswered

MOST = 2**20
"""Bytes of a line, and of an event's lines together."""

_BOM = b"\xef\xbb\xbf"
_END = b"[DONE]"


def events(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event of a stream that arrives in pieces.

    Raises `Unanswered` where the stream ends before [DONE], or an event doesn't end.
    """
    data: list[bytes] = []
    size = 0
    for line in _lines(pieces):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
            size += len(line)
        if size > MOST:
            raise Unanswered(f"sent an event of more than {MOST:,} bytes")
        if line or not data:
            continue
        event = b"\n".join(data).strip()
        if event == _END:
            return
        if event:  # one of nothing keeps a connection alive
            yield event
        data, size = [], 0
    if b"\n".join(data).strip() != _END:
        raise Unanswered("ended its stream before the answer")


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, without their ends; the last one may be cut."""
    line, first = bytearray(), True
    for piece in pieces:
        start, *others = piece.split(b"\n")
        line += start
        for other in others:
            yield bytes(line).removeprefix(_BOM if first else b"").removesuffix(b"\r")
            line, first = bytearray(other), False
        if len(line) > MOST:
            raise Unanswered(f"sent a line of more than {MOST:,} bytes")
    yield bytes(line)
