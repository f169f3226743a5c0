"""Progress of anything that takes more than a moment: a bar on a terminal, else a line now and
then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from threading import Event, Thread
from time import perf_counter
from typing import TypeVar

from foretoken.errors.extras import missing

T = TypeVar("T")

_SOON = 2.0  # seconds
_EVERY = 30.0  # seconds between two lines


def check_installed() -> None:
    """Raises `ForetokenError` where what draws the bars is not installed."""
    if find_spec("rich") is None:
        raise missing("rich", "cli", "A progress bar needs")


@contextmanager
def track(what: str, total: int, show: bool) -> Iterator[Callable[[], None]]:
    """A bar on standard error with `total` units (0: unknown); the value to call advances it by
    one.

    Where standard error is no terminal, or rich isn't installed, it is a line after two seconds and
    every half minute from then on, with the time left, and nothing for what is done sooner. Without
    a standard error, as daemons and pythonw are, it is nothing.
    """
    if not show or sys.stderr is None:
        yield lambda: None
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar(what, total) as advance:
            yield advance
    else:
        with _lines(what, total) as advance:
            yield advance


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def _lines(what: str, total: int) -> Iterator[Callable[[], None]]:
    """From a thread of its own, so that a line comes also while a single unit takes long."""
    began, done, ended = perf_counter(), 0, Event()

    def step() -> None:
        nonlocal done
        done += 1

    def report() -> None:
        told = False
        while not ended.wait(_EVERY if told else _SOON):
            told = True
            with suppress(OSError, ValueError):  # nobody reads, or the stream is closed
                line = f"{what}: {_state(done, total, perf_counter() - began)}"
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    reporting = Thread(target=report, name="progress", daemon=True)
    reporting.start()
    try:
        yield step
    finally:
        ended.set()
        reporting.join()


def _state(done: int, total: int, seconds: float) -> str:
    """How far it is after these seconds: "3 of 12 after 30 s, about 1 min left"."""
    text = f"{done} of {total}" if total else str(done)
    text += f" after {_duration(seconds)}"
    if total and done:
        text += f", about {_duration(seconds * (total - done) / done)} left"
    return text


def _duration(seconds: float) -> str:
    """In the two largest units that count."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def track_late(what: str, total: int) -> Iterator[Callable[[], None]]:
    """`track`, for what is often done at once: the bar appears when it takes more than two
    seconds. It ends at its total (0: unknown), also where more is done."""
    began, done = perf_counter(), 0
    advance: Callable[[], None] | None = None
    with ExitStack() as opened:

        def step() -> None:
            nonlocal advance, done
            if done == total > 0:
                return
            done += 1
            if advance is not None:
                advance()
            elif perf_counter() - began > _SOON:
                advance = opened.enter_context(track(what, total, True))
                for _ in range(done):
                    advance()

        yield step


def each_once(read: Callable[[str], T], advance: Callable[[], None]) -> Callable[[str], T]:
    """`read`, which advances a bar for every name that is read for the first time. A tensor that
    two parts of a model share may be read twice or not be there under one of its names, and is one
    of the checkpoint's tensors all the same."""
    known = set[str]()

    def counted(name: str) -> T:
        value = read(name)
        if name not in known:
            known.add(name)
            advance()
        return value

    return counted
