"""Progress bars for anything that takes more than a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from foretoken.errors import ForetokenError


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
