"""Limits of time and memory for other people's code that may loop forever."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter
from typing import Any

MEMORY = 2**31
"""Bytes that a process may grow by while such code runs."""

_LOOK = 0.05  # seconds between two looks at the memory


class _Expired(SystemExit):
    """Ends a thread without a word; no `except Exception` keeps it."""


def within(seconds: float, work: Callable[[], Any], memory: int = MEMORY) -> Any:
    """What `work()` returns, from a thread of its own. Raises what it raises, `TimeoutError` where
    it takes longer, and `MemoryError` where the process grows by more than `memory` bytes
    meanwhile; what is done at once isn't measured.

    The thread is then told to end, which it does at its next Python instruction: a loop ends, and
    one call of C code that never returns does not. While such a call keeps the interpreter's lock
    (a power of huge numbers), nothing in the process runs, this deadline included.
    """
    most = _resident() + memory
    thread, end = _Working(work), perf_counter() + seconds
    thread.start()
    while thread.is_alive():
        thread.join(min(_LOOK, max(0.0, end - perf_counter())))
        over = perf_counter() >= end
        if (over or (thread.is_alive() and _resident() > most)) and thread.cancelled():
            raise TimeoutError if over else MemoryError
    if thread.error is not None:
        raise thread.error
    return thread.result


def _resident() -> int:
    """Bytes of memory that the process holds; 0 where the system doesn't tell."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Working(Thread):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="foretoken-deadline", daemon=True)
        self._work, self._ending, self._over = work, Lock(), False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        with self._ending:
            self._over = True

    def cancelled(self) -> bool:
        """Tell the thread to end, unless its work is over. Under the lock it still runs, so that
        its number can't belong to another thread by now."""
        with self._ending:
            if self._over:
                return False
            assert self.ident is not None
            number, expired = ctypes.c_ulong(self.ident), ctypes.py_object(_Expired)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, expired)
            return True
