"""Progress bars: on a terminal, where they can be drawn."""

from __future__ import annotations

import io
import sys

import pytest

from command_line import Terminal
from foretoken import ForetokenError
from foretoken.progress import check_installed, track, track_late


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
    """A file gets no control characters."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with track("Reading", 1, True) as advance:
        advance()
    assert not shown.getvalue()


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
