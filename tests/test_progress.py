"""Progress: a bar on a terminal, where it can be drawn; else a line now and then."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from command_line import Terminal
from foretoken import ForetokenError, progress
from foretoken.progress import check_installed, each_once, track, track_late


@pytest.mark.parametrize(("show", "bar"), [(True, True), (False, False)])
def test_a_bar_on_a_terminal(show: bool, bar: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what is done and counts; without `show` nothing is drawn."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with track("Reading", 2, show) as advance:
        advance()
        advance()
    assert ("Reading" in shown.getvalue() and "2/2" in shown.getvalue()) == bar


def test_what_is_done_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method's label may have brackets."""
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with track("[/] [red]label", 1, True) as advance:
        advance()
    assert "[/] [red]label" in shown.getvalue()


def test_no_bar_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file gets no control characters, and nothing at all about what is done soon."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with track("Reading", 1, True) as advance:
        advance()
    assert not shown.getvalue()


def test_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a daemon: nothing is shown, also of what takes long, and the work is done."""
    monkeypatch.setattr(progress, "_SOON", 0.0)
    monkeypatch.setattr(sys, "stderr", None)
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with track("Reading", 1, True) as advance, track_late("Loading", 1) as late:
        time.sleep(0.02)
        advance()
        late()
    assert not raised


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_lines_elsewhere(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a unit takes long; without a terminal, and on one where no bar can be drawn."""
    monkeypatch.setattr(progress, "_SOON", 0.01)
    monkeypatch.setattr(progress, "_EVERY", 0.02)
    monkeypatch.setattr(sys, "stderr", shown := stream())
    monkeypatch.setitem(sys.modules, "rich", None)
    with track("Reading", 4, True) as advance:
        _wait(lambda: bool(re.search(r"Reading: 0 of 4 after \d+ s\n", shown.getvalue())))
        advance()
        _wait(lambda: bool(re.search(r"Reading: 1 of 4 after \d+ s, about ", shown.getvalue())))
    count = shown.getvalue().count("\n")
    time.sleep(0.06)
    assert shown.getvalue().count("\n") == count  # it ends with the work
    with track("Reading", 4, False):
        time.sleep(0.06)
    assert shown.getvalue().count("\n") == count


def test_the_first_line_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two seconds; the next ones half a minute apart."""
    waits: list[float] = []

    class Ending(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return len(waits) > 3

    monkeypatch.setattr(progress, "Event", Ending)
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    with track("Reading", 1, True):
        pass
    assert waits == [2, 30, 30, 30] and shown.getvalue().count("\n") == 3


def test_a_reader_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work goes on, and no stack trace comes from the side."""
    monkeypatch.setattr(progress, "_SOON", 0.01)
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with track("Reading", 1, True) as advance:
        shown.close()
        time.sleep(0.05)
        advance()
    assert not raised


@pytest.mark.parametrize(
    ("done", "total", "seconds", "said"),
    [
        (0, 9, 31.0, "0 of 9 after 31 s"),
        (3, 12, 30.0, "3 of 12 after 30 s, about 2 min left"),
        (1, 162, 90.0, "1 of 162 after 2 min, about 4 h 2 min left"),
        (7, 0, 3660.0, "7 after 1 h 1 min"),
    ],
)
def test_how_far_it_is(done: int, total: int, seconds: float, said: str) -> None:
    """Without a guess before the first unit, or of a number that isn't known."""
    assert progress._state(done, total, seconds) == said


def _wait(seen: Callable[[], bool]) -> None:
    """Until it is seen, at most five seconds."""
    end = time.monotonic() + 5
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_without_rich_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes on; who insists on a bar reads what to install."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setitem(sys.modules, "rich", None)
    with track("Reading", 1, True) as advance:
        advance()
    assert not shown.getvalue()
    with pytest.raises(ForetokenError, match="foretoken\\[cli\\]"):
        check_installed()


def test_a_bar_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done at once shows none; what takes longer shows what is done by then."""
    clock = iter((0.0, 1.9, 2.1))
    monkeypatch.setattr("foretoken.progress.perf_counter", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with track_late("Loading", 3) as advance:
        advance()
        assert not shown.getvalue()
        advance()
        advance()
    assert "Loading" in shown.getvalue() and "3/3" in shown.getvalue()


def test_a_late_bar_ends_at_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than that is not shown, and what has no total is counted on."""
    monkeypatch.setattr("foretoken.progress._SOON", -1.0)
    for total, expected in ((2, 2), (0, 3)):
        steps = list[int]()

        @contextmanager
        def counted(
            what: str, total: int, show: bool, steps: list[int] = steps
        ) -> Iterator[Callable[[], None]]:
            yield lambda: steps.append(1)

        monkeypatch.setattr("foretoken.progress.track", counted)
        with track_late("Loading", total) as advance:
            for _ in range(3):
                advance()
        assert len(steps) == expected


def test_a_name_advances_once() -> None:
    """However often it is read; what isn't there advances nothing."""
    steps, read = list[int](), {"a": 1, "b": 2}.__getitem__
    counted = each_once(read, lambda: steps.append(1))
    with pytest.raises(KeyError):
        counted("c")
    assert [counted(name) for name in "aba"] == [1, 2, 1] and len(steps) == 2
