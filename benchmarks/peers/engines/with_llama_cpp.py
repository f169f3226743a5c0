"""llama.cpp's own server, one process a method; token ids in and out.

It keeps its KV cache in float32 (its default is float16), or as "cache_type" says, and no prompt
from one call to the next.
The seconds are its own clock's for the prompt and the tokens, so that HTTP is not counted.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import closing, suppress
from http.client import HTTPConnection
from importlib.metadata import version
from typing import Any

from protocol import serve

_PATIENCE = 120.0  # seconds to load


class Server:
    """One llama-server."""

    def __init__(self, given: dict[str, Any], options: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        threads, kept = str(given["threads"]), given.get("cache_type", "f32")
        flags = {
            "--model": given["target"],
            "--host": "127.0.0.1",
            "--port": str(port),
            "--threads": threads,
            "--threads-batch": threads,
            "--parallel": "1",
            "--ctx-size": str(given["context"]),
            "--cache-type-k": kept,
            "--cache-type-v": kept,
        }
        if options.get("--spec-type") == "draft-simple":
            flags |= {
                "--model-draft": given["draft"],
                "--spec-draft-threads": threads,
                "--spec-draft-type-k": kept,
                "--spec-draft-type-v": kept,
            }
        words = [word for pair in (flags | options).items() for word in pair]
        self._process = subprocess.Popen([given["server"], *words, "--offline"])
        self._port = port
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError):  # nobody listens yet
                if self._call("GET", "/health").get("status") == "ok":
                    return
            time.sleep(0.2)
        raise RuntimeError(f"llama-server was not ready (status {self._process.poll()})")

    def _call(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        text = None if body is None else json.dumps(body)
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=900)) as connection:
            connection.request(verb, path, text, {"Content-Type": "application/json"})
            results: dict[str, Any] = json.loads(connection.getresponse().read())
        return results

    def complete(
        self, prompt: list[int], max_tokens: int, drawn: dict[str, Any]
    ) -> tuple[list[int], float]:
        greedy = {"temperature": 0, "samplers": ["top_k"], "top_k": 1}
        answer = self._call(
            "POST",
            "/completion",
            {
                "prompt": prompt,
                "n_predict": max_tokens,
                "cache_prompt": False,
                "return_tokens": True,
                **({**drawn, "samplers": ["temperature"]} if drawn else greedy),
            },
        )
        if "timings" not in answer:
            raise RuntimeError(json.dumps(answer)[:500])
        spent = answer["timings"]
        return answer["tokens"], (spent["prompt_ms"] + spent["predicted_ms"]) / 1000


class LlamaServer:
    def __init__(self, given: dict[str, Any]) -> None:
        # Built from the package's sources, which hold no revision of their own to print.
        self.versions = {"llama.cpp": f"of llama-cpp-python {version('llama-cpp-python')}"}
        self._servers = {m: Server(given, options) for m, options in given["methods"].items()}

    def generate(
        self, method: str, prompt: list[int], max_tokens: int, **drawn: Any
    ) -> tuple[list[int], float]:
        return self._servers[method].complete(prompt, max_tokens, drawn)


if __name__ == "__main__":
    serve(LlamaServer)
