"""A server with the OpenAI interface that answers at a known pace and counts as others do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from foretoken.bench.plan import Plan
from foretoken.bench.remote.openai import Endpoint, Reply
from foretoken.bench.suites.suite import Prompt
from foretoken.sampling.params import SamplingParams

FIRST, GAP = 0.06, 0.02  # seconds to the first word, and between words

WORDS = [f"word{i} " for i in range(8)]

VLLM = """# TYPE {p}:spec_decode_num_drafts counter
{p}:spec_decode_num_drafts{s}{{engine="0",model_name="m"}} {drafts}.0
{p}:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.78e+09
{p}:spec_decode_num_draft_tokens{s}{{engine="0",model_name="m"}} {drafted}.0
{p}:spec_decode_num_accepted_tokens{s}{{engine="0",model_name="m"}} {accepted}.0
{p}:spec_decode_num_accepted_tokens_per_pos{s}{{engine="0",model_name="m",position="0"}} {first}.0
{p}:spec_decode_num_accepted_tokens_per_pos{s}{{engine="0",model_name="m",position="1"}} {second}.0
"""


def vllm(requests: int, prefix: str = "vllm", suffix: str = "_total") -> str:
    """Each answer of eight words took five passes, two of them with a draft of two tokens."""
    return VLLM.format(
        p=prefix,
        s=suffix,
        drafts=2 * requests,
        drafted=4 * requests,
        accepted=3 * requests,
        first=2 * requests,
        second=requests,
    )


class Fake:
    """A server that answers every prompt with the same eight words, at a known pace."""

    def __init__(
        self,
        metrics: Callable[[int], str] | None,
        usage: bool,
        pace: float,
        words: list[str],
        together: int,
    ) -> None:
        self.metrics, self.usage, self.pace, self.words = metrics, usage, pace, words
        self.gate = threading.Barrier(together)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answered, self.busy, self.busiest = 0, 0, 0
        self.lock = threading.Lock()

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The stream: role, words, reason, usage."""
        last = body["messages"][-1]["content"]
        yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        time.sleep(FIRST * self.pace)
        for word in self.words:
            yield {"choices": [{"delta": {"content": word}, "finish_reason": None}]}
            if last == "break off":
                yield {"error": {"message": "out of memory", "code": 500}}
                return
            if last == "talk nonsense":
                yield ["choices"]  # type: ignore[misc]
            if last == "hang up":
                return
            time.sleep(GAP * self.pace)
        with self.lock:
            self.answered += 1
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        if self.usage and body["stream_options"]["include_usage"]:
            yield {"choices": [], "usage": {"completion_tokens": 8, "prompt_tokens": 5}}


class Handler(BaseHTTPRequestHandler):
    """HTTP around a `Fake`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as servers that stream do
    fake: Fake

    def do_GET(self) -> None:
        fake = self.fake
        if self.path == "/v1/models":
            self._send("application/json", '{"data": [{"id": "m", "max_model_len": 300}]}')
        elif self.path == "/metrics" and fake.metrics is not None:
            self._send("text/plain", fake.metrics(fake.answered))
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake.lock:
            fake.asked.append({"path": self.path, **body})
            fake.keys.append(self.headers["Authorization"])
            fake.busy += 1
            fake.busiest = max(fake.busiest, fake.busy)
        fake.gate.wait(20)
        if body["messages"][-1]["content"] == "refuse":
            self._send("application/json", '{"error": {"message": "too\\n long"}}', 400)
        else:
            self._stream(fake.events(body))
        with fake.lock:
            fake.busy -= 1

    def _stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(": a comment, as keep-alives are\n\n")
        for event in events:
            self._chunk(f"data: {json.dumps(event)}\n\n")
        self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

    def _send(self, kind: str, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(
    metrics: Callable[[int], str] | None = vllm,
    *,
    usage: bool = True,
    pace: float = 0.0,
    words: list[str] = WORDS,
    together: int = 1,
) -> Iterator[tuple[Fake, Endpoint]]:
    """One on this machine, while the context lasts. together: so many requests must have come
    before any of them is answered."""
    fake = Fake(metrics, usage, pace, words, together)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"fake": fake}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake, Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", "m", timeout=10)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def endless(to: BaseHTTPRequestHandler, start: bytes, part: bytes) -> None:
    """Send a start, and then a part again and again."""
    head(to)
    to.wfile.write(start)
    while True:
        to.wfile.write(part)


KEY = "sk-0123456789abcdef"
ADDRESS = r"^127\.0\.0\.1:\d+ "
"""How a sentence about the server begins, as a pattern."""

PARAMS = SamplingParams(max_tokens=8)
WORD = b'data: {"choices": [{"delta": {"content": "word"}, "finish_reason": "stop"}]}\n\n'
"""An event with all of an answer."""


def asked(url: str, timeout: float = 5.0, total: float = 5.0) -> Reply:
    """What is kept of an answer from this address."""
    return Endpoint(url, "m", timeout, total).ask([{"role": "user", "content": "?"}], PARAMS)


def plan(**options: Any) -> Plan:
    return Plan(
        **{"model": "m", "name": "m", "methods": {"server": {}}, "temperatures": (0.0,)} | options
    )


Answering = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answering, *, models: bool = True) -> Iterator[str]:
    """A server that answers every request by calling this, and then closes the connection: its
    address. With `models` it lists the model "m" as others do."""

    class Unruly(Handler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            if not models or self.path != "/v1/models":
                with suppress(OSError):  # nobody reads to the end
                    answer(self)
                return
            self._send("application/json", '{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with suppress(OSError):  # nobody reads to the end
                answer(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Unruly)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.socket.close()
        thread.join()


def head(to: BaseHTTPRequestHandler, status: int = 200, **headers: str) -> None:
    """Send the status and headers; "_" in their names stands for "-"."""
    to.send_response(status)
    for name, value in {"Content_Type": "text/event-stream", **headers}.items():
        to.send_header(name.replace("_", "-"), value)
    to.end_headers()


PROMPT = Prompt("1", "qa", ("How far?",), system="Be brief.", stop=("\n\n",), max_tokens=50)
