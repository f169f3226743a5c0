"""Compiles grammars beside the engine: each once, in the background, with a time limit."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib.util import find_spec
from queue import SimpleQueue
from time import monotonic
from typing import Any, Protocol

from foretoken.errors import ForetokenError, Overloaded, caught, unknown
from foretoken.errors.extras import missing
from foretoken.grammar.constraint import Matcher
from foretoken.grammar.guidance import Guidance
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.grammar.xgrammar import XGrammar

Start = Callable[[], Matcher]


class Backend(Protocol):
    """Compiles grammars for one tokenizer."""

    def compile(self, form: StructuredOutputsParams) -> Start:
        """What makes matchers. Raises `ForetokenError` for a grammar that there isn't."""


Make = Callable[[Any, int, frozenset[int]], Backend]
"""(tokenizer, vocabulary, ends of text) -> a backend for them."""

BACKENDS: Mapping[str, tuple[Make, str, str]] = {
    "guidance": (Guidance, "llguidance", "grammar"),
    "xgrammar": (XGrammar, "xgrammar", "xgrammar"),
}
"""structured_outputs_backend -> what makes it, the package it needs and the extra that has it."""

AUTO = "auto"
SECONDS = 30.0
KEPT, KEPT_CHARACTERS = 256, 1_000_000  # of texts; a grammar takes some 150 bytes for each
THREADS, MOST_THREADS = 2, 6  # that compile; with those that don't come to an end


def check_backend(name: str) -> str:
    """The name. Raises `ForetokenError` for a backend that there isn't."""
    if name not in (AUTO, *BACKENDS):
        raise unknown("structured_outputs_backend", name, [AUTO, *BACKENDS])
    return name


def found_backend(name: str) -> Make:
    """What makes the backend of this name; "auto" is the first that is installed. Raises
    `ForetokenError` where the package that it needs isn't."""
    names = list(BACKENDS) if name == AUTO else [name]
    for make, package, _ in (BACKENDS[name] for name in names):
        if find_spec(package) is not None:
            return make
    _, package, extra = BACKENDS[names[0]]
    raise missing(package, extra, "Structured outputs need")


class _Order:
    """A grammar that is to be compiled, for all requests that ask for it."""

    def __init__(self, form: StructuredOutputsParams) -> None:
        self._form: StructuredOutputsParams | None = form  # until it is compiled, or nobody waits
        self.size = len(form.text) + len(form.whitespace_pattern or "")
        self.compiled: Future[Start] = Future()
        self._waiting = 0
        self._began: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it has come to an end without a grammar."""
        done = self.compiled
        return done.cancelled() or (done.done() and done.exception() is not None)

    def late(self, seconds: float) -> bool:
        """Whether it has been compiled for longer than this."""
        return self._began is not None and monotonic() - self._began >= seconds

    def join(self) -> None:
        """One more request waits for it."""
        self._waiting += 1

    def leave(self) -> None:
        """One fewer. Where none is left, it isn't begun any more."""
        self._waiting -= 1
        if not self._waiting and self.compiled.cancel():
            self._form = None

    def begin(self) -> StructuredOutputsParams | None:
        """What is to be compiled now; None where nobody waits for it any more."""
        if not self.compiled.set_running_or_notify_cancel():
            return None
        form, self._form, self._began = self._form, None, monotonic()
        return form


class Pending:
    """A grammar that is being compiled. A request waits for it; others go on."""

    def __init__(self, order: _Order, seconds: float, staff: Callable[[], bool]) -> None:
        """seconds: how long compiling may take. staff: what sees to it that it is compiled while
        others take for ever, and says whether it can be."""
        self._order, self._seconds, self._staff = order, seconds, staff
        self._left = False
        order.join()

    @property
    def settled(self) -> bool:
        """Whether `result` answers at once: it is compiled, or has failed, or takes too long, as
        all that could be compiled before it do. The time that it waits for others isn't its own."""
        if self._order.compiled.done() or self._order.late(self._seconds):
            return True
        with suppress(RuntimeError):  # the system has no thread left; there may be one later
            return not self._staff()
        return False

    def wait(self, seconds: float) -> None:
        """Wait until it is compiled, at most so long."""
        wait([self._order.compiled], seconds)

    def leave(self) -> None:
        """The request has ended."""
        if not self._left:
            self._left = True
            self._order.leave()

    def result(self) -> Start:
        """Raises `ForetokenError` for a grammar that can't be compiled, or not in time, and
        `Overloaded` where others keep it from being."""
        if self._order.compiled.done():
            return self._order.compiled.result()
        if not self._order.late(self._seconds):
            raise _all_lost(self._seconds)
        raise ForetokenError(
            f"The grammar of structured_outputs wasn't compiled within {self._seconds:g} s; "
            "use a simpler one."
        )


def _all_lost(seconds: float) -> Overloaded:
    return Overloaded(
        f"{MOST_THREADS} grammars of structured_outputs have been compiled for more than "
        f"{seconds:g} s each and don't come to an end, so no other is begun; use simpler ones, and "
        "make the LLM anew."
    )


class Compiler:
    """Compiled grammars by what was asked for. The last `KEPT` are kept, of texts of
    `KEPT_CHARACTERS` together, and the very last whatever its size. One thread calls it."""

    def __init__(self, make: Callable[[], Backend], seconds: float = SECONDS) -> None:
        """make: the backend, in the first of the threads."""
        self._staff = _Staff(make, seconds)
        self._known: OrderedDict[str, _Order] = OrderedDict()
        weakref.finalize(self, self._staff.dismiss).atexit = False

    def compile(self, form: StructuredOutputsParams) -> Pending:
        """Begin to compile, or take what is there. Raises `ForetokenError` for a schema that is no
        JSON, and `Overloaded` where too many grammars don't come to an end."""
        order = self._known.get(form.key)
        ready = order is not None and order.compiled.done() and not order.failed
        if not ready and not self._staff.is_there():
            raise _all_lost(self._staff.seconds)
        if order is None or order.failed:
            order = self._known[form.key] = _Order(form)
            self._staff.take(order)
        self._known.move_to_end(form.key)
        self._forget()
        return Pending(order, self._staff.seconds, self._staff.is_there)

    def _forget(self) -> None:
        """What was asked for longest ago, where there is too much."""
        size = sum(order.size for order in self._known.values())
        while len(self._known) > 1 and (len(self._known) > KEPT or size > KEPT_CHARACTERS):
            size -= self._known.popitem(last=False)[1].size


class _Staff:
    """The threads that compile for one `Compiler`. They hold nothing of it: it dismisses them as it
    goes, with the `LLM` that it serves."""

    def __init__(self, make: Callable[[], Backend], seconds: float) -> None:
        self._make, self.seconds = make, seconds
        self._backend: Backend | None = None
        self._making = threading.Lock()
        self._todo: SimpleQueue[_Order | None] = SimpleQueue()
        self._counting = threading.Lock()
        self.threads: set[threading.Thread] = set()
        self._at: dict[threading.Thread, _Order] = {}  # what is being compiled

    def take(self, order: _Order) -> None:
        """Have a grammar compiled, after those that were taken before."""
        self._todo.put(order)

    def dismiss(self) -> None:
        """End the threads, each after what it compiles, and don't wait for that. It takes no lock,
        as the collector may call it anywhere."""
        self._todo.put(None)

    def is_there(self) -> bool:
        """Have `THREADS` threads that take what is to be compiled, besides those that are lost to
        grammars that take too long. Threads are few, so that these can't fill the memory. Returns
        whether there is one. Raises `RuntimeError` where the system lets none be started."""
        with self._counting:
            while (working := self._working()) < THREADS and len(self.threads) < MOST_THREADS:
                # The interpreter doesn't wait for it as it ends: grammars may be endless.
                thread = threading.Thread(target=self._work, name="foretoken-grammars", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    if not working:
                        raise
                    break  # the other one takes it all
                self.threads.add(thread)  # it waits for the lock until then
            return working > 0

    def _working(self) -> int:
        """How many threads aren't lost."""
        return len(self.threads) - sum(order.late(self.seconds) for order in self._at.values())

    def _free(self) -> bool:
        """Count this thread as one that compiles nothing; whether it is still needed."""
        thread = threading.current_thread()
        with self._counting:
            self._at.pop(thread, None)
            needed = self._working() <= THREADS
            if not needed:
                self.threads.remove(thread)
            return needed

    def _work(self) -> None:
        while self._free() and self._carry_out(self._todo.get()):
            pass

    def _carry_out(self, order: _Order | None) -> bool:
        """Compile a grammar, if anybody waits for it. Returns whether more may come."""
        if order is None:
            self._todo.put(None)  # for the others
            return False
        form = order.begin()
        if form is None:
            return True
        with self._counting:
            self._at[threading.current_thread()] = order
        try:
            with self._making:
                self._backend = self._backend or self._make()
            order.compiled.set_result(self._backend.compile(form))
        except caught() as error:
            order.compiled.set_exception(error)
        return True
