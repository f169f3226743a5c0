"""A stream of events: as the standard allows it, and everything else."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler

import pytest

from fake_server import ADDRESS, WORD, answering, asked, endless, head
from foretoken.bench.remote.events import MOST, events


@pytest.mark.parametrize(
    ("start", "part"),
    [(b"data: ", b"x" * 65536), (b"", b"data: x\n" * 8192), (b":", b"\r" * 65536)],
    ids=["line", "event", "comment"],
)
def test_a_line_has_an_end(start: bytes, part: bytes) -> None:
    """An event that never ends, on one line or many, fills no memory."""
    with answering(lambda to: endless(to, start, part)) as url:
        error = asked(url).error
    assert error is not None and re.match(ADDRESS + "sent .* of more than 1,048,576 bytes", error)


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (b"", "ended its stream before"),
        (b"\n\n: only comments\n\n", "ended its stream before"),
        (WORD, "ended its stream before"),
        (WORD + b"data: [DO", "ended its stream before"),
        (WORD[:40], "ended its stream before"),
        (WORD[:40] + b"\n\n", "sent an event that isn't JSON"),
        (b"hello\n\n" + WORD[6:], "ended its stream before"),
        (b"data: word\n\n", "sent an event that isn't JSON"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "sent an event that isn't JSON"),
        (b"data: " + b"9" * 5000 + b"\n\n", "sent an event that isn't JSON"),
        (b'data: {"choices": "\xff"}\n\n', "sent text that isn't UTF-8"),
        (b"data: null\n\n", "sent an event that is no JSON object"),
        (b"data: [1]\n\n", "sent an event that is no JSON object"),
        (b"data: {}\n\n", "sent an event without choices"),
        (b'data: {"choices": null}\n\n', "choices .* NoneType"),
        (b'data: {"choices": {}}\n\n', "choices .* dict"),
        (b'data: {"choices": [3]}\n\n', "choice .* int"),
        (b'data: {"choices": [{"delta": "word"}]}\n\n', "delta .* str"),
        (b'data: {"choices": [{"delta": {"content": ["word"]}}]}\n\n', "content .* list"),
        (b'data: {"choices": [{"delta": {"reasoning": 3}}]}\n\n', "reasoning .* int"),
        (b'data: {"choices": [{"delta": {}, "finish_reason": 1}]}\n\n', "finish_reason .* int"),
        (b'data: {"choices": [], "usage": [8]}\n\n', "usage .* list"),
        (
            b'data: {"choices": [], "usage": {"completion_tokens": "8"}}\n\n',
            "completion_tokens are no",
        ),
        (
            b'data: {"choices": [], "usage": {"completion_tokens": 1e999}}\n\n',
            "completion_tokens are no",
        ),
        (b'data: {"choices": [], "usage": {"prompt_tokens": -1}}\n\n', "prompt_tokens are no"),
        (b'data: {"choices": [], "usage": {"prompt_tokens": true}}\n\n', "prompt_tokens are no"),
        (
            b'data: {"choices": [], "usage": {"prompt_tokens": 1' + b"0" * 999 + b"}}\n\n",
            "no number",
        ),
        (b'data: {"error": {"message": 5}}\n\n', "reports an error: 5"),
        (b'data: {"error": "out of\\n memory"}\n\n', "reports an error: out of memory"),
        (b"data: [DONE]\n\n", "ended its stream before"),
        (WORD.replace(b"stop", b"abort") + b"data: [DONE]\n\n", "ended its answer by 'abort'"),
        (WORD.replace(b"stop", b"error") + b"data: [DONE]\n\n", "ended its answer by 'error'"),
    ],
)
def test_a_stream_that_says_something_else(stream: bytes, told: str) -> None:
    """Is told in one sentence that names the server."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        head(to)
        to.wfile.write(stream)

    with answering(answer) as url:
        error = asked(url).error
    assert error is not None and re.match(ADDRESS + f".*{told}", error), error
    assert "\n" not in error and len(error) < 200


@pytest.mark.parametrize(
    "stream",
    [
        b"\xef\xbb\xbf" + WORD + b"data: [DONE]\n\n",
        WORD.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
        b": hello\n\nevent: message\nid: 3\nretry: 9\n" + WORD + b"data:[DONE]\n\n",
        WORD.replace(b' "finish', b'\ndata: "finish') + b"data: [DONE]",
        WORD + b"data: [DONE]\n\ndata: rubbish\n\n",
        b"data:\n\ndata: \n\n" + WORD + b"data: [DONE]\n\n",
        WORD + b'data: {"choices": null, "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n',
        WORD + b'data: {"usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n',
    ],
    ids=["bom", "crlf", "fields", "two lines", "more", "nothing", "usage", "usage alone"],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_as_the_standard_allows_it(stream: bytes, size: int) -> None:
    """Is understood, wherever its parts are cut."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        head(to)
        for at in range(0, len(stream), size):
            to.wfile.write(stream[at : at + size])

    with answering(answer) as url:
        reply = asked(url)
    assert (reply.error, reply.text, reply.finish_reason) == (None, "word", "stop")


def test_a_stream_may_be_longer_than_an_event() -> None:
    """Each event is measured by itself, whatever came before it."""
    part = b"x" * (MOST // 3)
    stream = [b"data: " + part + b"\n\n"] * 4
    assert list(events([*stream, b"data: [DONE]\n\n"])) == [part] * 4
