"""A time limit for other people's code that may loop forever."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any


class _Expired(SystemExit):
    """Ends a thread without a word; no `except Exception` keeps it."""


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work()` returns, from a thread of its own. Raises what it raises, and `TimeoutError`
    where it takes longer.

    The thread is then told to end, which it does at its next Python instruction: a loop ends, and
    one call of C code that never returns does not. While such a call keeps the interpreter's lock
    (a power of huge numbers), nothing in the process runs, this deadline included.
    """
    thread = _Working(work)
    thread.start()
    thread.join(seconds)
    if thread.cancelled():
        raise TimeoutError
    if thread.error is not None:
        raise thread.error
    return thread.result


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
