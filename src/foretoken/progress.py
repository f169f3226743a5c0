"""Progress bars for anything that takes more than a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from time import perf_counter

from foretoken.errors import ForetokenError

_SOON = 2.0  # seconds


def check_installed() -> None:
    """Raises `ForetokenError` where what draws the bars is not installed."""
    if find_spec("rich") is None:
        raise ForetokenError("A progress bar needs rich; pip install 'foretoken[cli]'.")


@contextmanager
def track(what: str, total: int, show: bool) -> Iterator[Callable[[], None]]:
    """A bar on standard error with `total` units; the value to call advances it by one.

    Where standard error is no terminal, or rich isn't installed, there is no bar.
    """
    if not show or not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda: None
        return
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
def track_late(what: str, total: int) -> Iterator[Callable[[], None]]:
    """`track`, for what is often done at once: the bar appears when it takes more than two
    seconds."""
    began, done = perf_counter(), 0
    advance: Callable[[], None] | None = None
    with ExitStack() as opened:

        def step() -> None:
            nonlocal advance, done
            done += 1
            if advance is not None:
                advance()
            elif perf_counter() - began > _SOON:
                advance = opened.enter_context(track(what, total, True))
                for _ in range(done):
                    advance()

        yield step
