"""Progress bars: on a terminal, where they can be drawn."""

from __future__ import annotations

import io
import sys

import pytest

from foretoken import ForetokenError
from foretoken.progress import check_installed, track


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("show", "bar"), [(True, True), (False, False)])
def test_a_bar_on_a_terminal(show: bool, bar: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what is done and counts; without `show` nothing is drawn."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with track("Reading", 2, show) as advance:
        advance()
        advance()
    assert ("Reading" in shown.getvalue() and "2/2" in shown.getvalue()) == bar


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
