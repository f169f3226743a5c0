"""Spreads shards of a benchmark over a Ray cluster: each in a separate process and folder.

A shard's folder is sent to its worker and back, so the machines need not share a disk, and a shard
that is run again resumes where it stopped. Answers are sent back as they are written. The shard
itself is the ordinary command, in a process without Ray.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

FOLDER = "{folder}"
"""Stands in a command for the shard's folder on its worker."""

SAMPLES, STDERR = "samples.jsonl", "stderr.txt"
_POLL = 0.5  # seconds between two looks at the file that a shard writes
_KNOWN = 256  # bytes by which the end of what was sent is found again


@dataclass(frozen=True)
class Shard:
    """A shard that has ended. number: from 1; error: a sentence, None where all went well."""

    number: int
    folder: Path
    error: str | None


@dataclass(frozen=True)
class _Lines:
    """New lines of a worker's samples: what its file has from byte `at` on."""

    at: int
    text: bytes


@dataclass(frozen=True)
class _Finished:
    """A worker's last message: the folder's files, and why the process failed if it did."""

    files: dict[str, bytes]
    error: str | None


def shard_commands(arguments: Seq[str], shards: int) -> list[list[str]]:
    """Python's arguments for `foretoken ARGUMENTS --shard i/n`, one list a shard."""
    start = ["-c", "from foretoken.cli import main; main()", *arguments, "--out", FOLDER]
    return [[*start, "--shard", f"{i}/{shards}"] for i in range(1, shards + 1)]


def run_shards(
    commands: Seq[Seq[str]], out: Path, *, workers: int, advance: Callable[[], None] = lambda: None
) -> list[Shard]:
    """Run Python with each list of arguments, `workers` at a time, within `cluster()`.

    The i-th command's files come to `out/shard-i`, whether it fails or not; files that are there
    already are handed to it. `advance` is called once for each new line of its samples.jsonl.
    """
    import ray

    folders = [out / f"shard-{i}" for i in range(1, len(commands) + 1)]
    resources, working_folder = _resources(workers), str(Path.cwd())
    # A retry would begin with the files of the first try and write its answers twice.
    remote = ray.remote(
        num_returns="streaming", scheduling_strategy="SPREAD", max_retries=0, **resources
    )(_run_shard)
    running = {
        remote.remote(list(command), _files(folder), working_folder): i
        for i, (command, folder) in enumerate(zip(commands, folders, strict=True))
    }
    errors: list[str | None] = [None] * len(folders)
    try:
        while running:
            [stream], _ = ray.wait(list(running), num_returns=1)
            at = running[stream]
            try:
                event = ray.get(next(stream))
                if isinstance(event, _Finished):
                    errors[at] = _store(event, folders[at])
                else:
                    _append(event, folders[at], advance)
            except StopIteration:
                del running[stream]
            except ray.exceptions.RayError as error:
                errors[at] = f"its worker is lost: {_last_line(str(error))}"
                del running[stream]
    finally:
        for stream in running:
            ray.cancel(stream)
    return [
        Shard(i, folder, error and f"Shard {i}/{len(folders)} failed: {error}")
        for i, (folder, error) in enumerate(zip(folders, errors, strict=True), 1)
    ]


def _resources(workers: int) -> dict[str, float]:
    """The processors and GPUs that one of `workers` gets: an equal share, all on one machine."""
    import ray

    resources = {}
    for kind, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        amounts = [node["Resources"].get(kind, 0.0) for node in ray.nodes() if node["Alive"]]
        share = min(sum(amounts) / workers, max(amounts))
        resources[option] = share if share < 1 else float(int(share))
    return resources


def _append(lines: _Lines, folder: Path, advance: Callable[[], None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / SAMPLES).open("ab") as samples:
        samples.truncate(lines.at)
        samples.write(lines.text)
    for _ in range(lines.text.count(b"\n")):
        advance()


def _store(end: _Finished, folder: Path) -> str | None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in end.files.items():
        (folder / name).write_bytes(data)
    return end.error


def _run_shard(
    arguments: list[str], files: dict[str, bytes], working_folder: str
) -> Iterator[_Lines | _Finished]:
    """On the worker: run the command, yield new lines of its samples, at last its folder."""
    folder = Path(tempfile.mkdtemp(prefix="foretoken-shard-"))
    try:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        with (folder / STDERR).open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, *(a.replace(FOLDER, str(folder)) for a in arguments)],
                cwd=working_folder if os.path.isdir(working_folder) else folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        try:
            yield from _new_lines(child, folder / SAMPLES)
        finally:
            child.kill()
            child.wait()
        yield _Finished(_files(folder), _failure(child.returncode, folder / STDERR))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _new_lines(child: subprocess.Popen[bytes], path: Path) -> Iterator[_Lines]:
    """What is written to the file while the process runs, in whole lines; all of it where what was
    sent isn't there any more, as a shard that resumes cuts off what was left of a unit."""
    sent = path.stat().st_size if path.exists() else 0
    end = _end(path, sent) if sent else b""
    while True:
        ended = child.poll() is not None
        if path.exists():
            if _end(path, sent) != end:
                sent = 0
            with path.open("rb") as file:
                file.seek(sent)
                text = b"".join(file.read().rpartition(b"\n")[:2])
            if text:
                yield _Lines(sent, text)
                sent += len(text)
                end = _end(path, sent)
        if ended:
            return
        time.sleep(_POLL)


def _end(path: Path, sent: int) -> bytes:
    """The last bytes of the first `sent`; fewer where there are fewer."""
    with path.open("rb") as file:
        file.seek(max(0, sent - _KNOWN))
        return file.read(min(sent, _KNOWN))


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*")) if p.is_file()}


def _failure(code: int, stderr: Path) -> str | None:
    if code == 0:
        return None
    last = _last_line(stderr.read_text(encoding="utf-8", errors="replace"))
    return last or f"exit status {code}, and nothing on standard error."


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
