"""Runs cases in processes of their own: one that dies or never returns is replaced by another."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from hostile_inputs.case import Outcome, shown

Line = dict[str, Any]


@dataclass(frozen=True)
class Isolated:
    """command: prints a line before and after each case, from the one that --start names on.
    environment: added to this process's own. seconds: for a case, and for a start."""

    command: list[str]
    environment: Mapping[str, str]
    seconds: float
    cases: int


def isolated(work: Isolated) -> Iterator[dict[str, Any]]:
    """The outcome of each case, as data, in their order."""
    done = 0
    while done < work.cases:
        for outcome in _one_process(work, done):
            done += 1
            yield outcome


def _one_process(work: Isolated, start: int) -> Iterator[dict[str, Any]]:
    """The outcomes from `start` on, up to the first case that the process doesn't survive."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [*work.command, "--start", str(start)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **work.environment},
            start_new_session=True,
        )
        try:
            last = start - 1
            for line in _lines(process, work.seconds):
                if "ended" in line:
                    last = line.pop("ended")
                    yield line
            if last < work.cases - 1:
                yield _crash(process, log)
        finally:
            _kill(process)


def _lines(process: subprocess.Popen[str], seconds: float) -> Iterator[Line]:
    """What the process prints, until it ends or is silent for so long."""
    arrived: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            arrived.put(line)
        arrived.put("")

    threading.Thread(target=read, daemon=True).start()
    silent = seconds + 60  # a start takes its time
    while True:
        try:
            line = arrived.get(timeout=silent)
        except queue.Empty:
            return
        if not line:
            process.wait(10)
            return
        silent = seconds
        yield json.loads(line)


def _crash(process: subprocess.Popen[str], log: IO[str]) -> dict[str, Any]:
    outcome, code = Outcome(), process.poll()
    log.seek(0)
    told = [line for line in log.read().splitlines() if line.strip()]
    summary = [line for line in told if "ERROR: AddressSanitizer" in line] or told[-1:]
    how = "it never came back" if code is None else f"the process ended with {_named(code)}"
    outcome.blame("crashed", f"{how} {shown(' '.join(summary), 200)}")
    return outcome.data()


def _named(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
