"""A time limit: the caller is back in time, and the thread that was too slow ends."""

from __future__ import annotations

import threading
import time

import pytest

from foretoken.engine.deadline import within


def running() -> int:
    return sum(thread.name == "foretoken-deadline" for thread in threading.enumerate())


def test_what_is_in_time() -> None:
    """The result, or the work's own error."""
    assert within(10, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0)
    assert running() == 0


def ended() -> bool:
    """Whether all threads end soon."""
    until = time.perf_counter() + 5
    while running() and time.perf_counter() < until:
        time.sleep(0.01)
    return running() == 0


def test_an_endless_loop_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Even one that catches every `Exception`, and without a word on the terminal."""
    rounds = 0

    def loop() -> None:
        nonlocal rounds
        while True:
            try:
                rounds += 1
            except Exception:
                continue

    began = time.perf_counter()
    with pytest.raises(TimeoutError):
        within(0.1, loop)
    assert 0.1 <= time.perf_counter() - began < 5
    assert ended() and rounds > 0
    assert capsys.readouterr() == ("", "")


def test_what_grows_ends() -> None:
    """Long before its time is over, and its memory is free again."""
    kept: list[bytes] = []

    def grow() -> None:
        held = []
        while True:
            held.append(b"x" * 999_999)

    began = time.perf_counter()
    with pytest.raises(MemoryError):
        within(20, grow, memory=2**27)
    assert time.perf_counter() - began < 10 and ended()
    assert within(10, lambda: kept, memory=1) is kept, "what is done at once is not measured"
