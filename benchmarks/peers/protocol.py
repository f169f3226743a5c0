"""How the driver talks to an engine: lines of JSON over a worker's standard input and output.

A worker that has loaded its models writes {"versions": {…}}. From then on it answers each line
{"method", "prompt", "max_tokens"}, with "temperature" and "seed" where it is to draw, with one line
{"ids", "seconds"} or {"error"}, and ends when its input ends. Only the standard library is used, as
every peer's own environment imports this file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Engine(Protocol):
    """What a file in engines/ makes; it loads every method that it will be asked for at once."""

    versions: dict[str, str]

    def generate(
        self, method: str, prompt: list[int], max_tokens: int, **drawn: Any
    ) -> tuple[Sequence[int], float]:
        """Token ids, and the seconds that the engine took over the whole call. drawn: temperature
        and seed; greedy without them."""
        ...


def serve(load: Callable[[dict[str, Any]], Engine]) -> None:
    """A worker's whole life; the JSON on its command line names what to load.

    It holds "target" and "draft" (checkpoints in the engine's own format), "threads" and "methods",
    which maps a method's name to the engine's own options for it.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand between the replies
    engine = load(json.loads(sys.argv[1]))
    _say(replies, {"versions": dict(engine.versions)})
    for line in sys.stdin:
        try:
            ids, seconds = engine.generate(**json.loads(line))
            _say(replies, {"ids": [int(token) for token in ids], "seconds": seconds})
        except Exception as error:
            _say(replies, {"error": f"{type(error).__name__}: {error}"})


def _say(replies: Any, reply: Mapping[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


class Failed(Exception):
    """An engine that could not be started, or did not answer a prompt, with the reason."""


class Worker:
    """An engine in a process of its own, seen from the driver.

    patience: seconds after which a silent worker is ended, with all that it started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        patience: float = 900.0,
    ) -> None:
        self._log, self._patience = log, patience
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=env,
                start_new_session=True,
            )
        self.versions: dict[str, str] = self._reply()["versions"]

    def ask(
        self, method: str, prompt: Sequence[int], max_tokens: int, **drawn: float
    ) -> tuple[list[int], float]:
        """Token ids and seconds; raises `Failed`. drawn: temperature and seed, else greedy."""
        request = {"method": method, "prompt": list(prompt), "max_tokens": max_tokens, **drawn}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        reply = self._reply()
        return reply["ids"], reply["seconds"]

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(self._patience, self._end)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise Failed(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"the worker ended with status {code}" + (f": {lines[-1]}" if lines else "")

    def _end(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Let the worker end by itself, or end it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        self._end()  # with anything that it started and did not end
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
