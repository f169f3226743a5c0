"""Compiles grammars beside the engine: each once, in the background, with a time limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib.util import find_spec
from queue import SimpleQueue
from time import monotonic
from typing import Any, Protocol

from foretoken.errors import ForetokenError, caught, unknown
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
SECONDS, KEPT = 30.0, 256
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
    raise ForetokenError(f"Structured outputs need {package}; pip install 'foretoken[{extra}]'.")


class Pending:
    """A grammar that is being compiled. A request waits for it; others go on."""

    def __init__(self, compiled: Future[Start], seconds: float, staff: Callable[[], bool]) -> None:
        """staff: what sees to it that it is compiled while others take for ever."""
        self._compiled, self._seconds, self._staff = compiled, seconds, staff
        self._deadline = monotonic() + seconds

    @property
    def settled(self) -> bool:
        """Whether `result` answers at once: it is compiled, or has failed, or its time is over."""
        if self._compiled.done() or monotonic() >= self._deadline:
            return True
        self._staff()
        return False

    def wait(self, seconds: float) -> None:
        """Wait until it is compiled, at most so long."""
        done = threading.Event()
        self._compiled.add_done_callback(lambda _: done.set())
        done.wait(seconds)

    def result(self) -> Start:
        """Raises `ForetokenError` for a grammar that can't be compiled, or not in time."""
        if not self._compiled.done():
            raise ForetokenError(
                f"The grammar of structured_outputs wasn't compiled within {self._seconds:g} s; "
                "use a simpler one."
            )
        return self._compiled.result()


class Compiler:
    """Compiled grammars by what was asked for; the last `KEPT` are kept."""

    def __init__(self, make: Callable[[], Backend], seconds: float = SECONDS) -> None:
        """make: the backend, in the first of the threads."""
        self._make, self._seconds = make, seconds
        self._backend: Backend | None = None
        self._making = threading.Lock()
        self._known: OrderedDict[object, Future[Start]] = OrderedDict()
        self._todo: SimpleQueue[tuple[StructuredOutputsParams, Future[Start]]] = SimpleQueue()
        self._counting = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._began: dict[threading.Thread, float] = {}  # of those that compile, when they began

    def compile(self, form: StructuredOutputsParams) -> Pending:
        """Begin to compile, or take what is there. Raises `ForetokenError` for a schema that is no
        JSON, and where too many grammars don't come to an end."""
        key = form.key
        known = self._known.get(key)
        ready = known is not None and known.done() and known.exception() is None
        if not ready and not self._staff():
            raise ForetokenError(
                f"{MOST_THREADS} grammars of structured_outputs have been compiled for more than "
                f"{self._seconds:g} s each and don't come to an end, so no other is begun; use "
                "simpler ones, and make the LLM anew."
            )
        if known is None or (known.done() and not ready):
            known = self._known[key] = Future()
            self._todo.put((form, known))
        self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return Pending(known, self._seconds, self._staff)

    def _staff(self) -> bool:
        """Have `THREADS` threads that take what is to be compiled, besides those that are lost to
        grammars that take too long. Threads are few, so that these can't fill the memory. Returns
        whether there is one."""
        with self._counting:
            while (working := self._working()) < THREADS and len(self._threads) < MOST_THREADS:
                thread = threading.Thread(target=self._work, daemon=True)
                self._threads.add(thread)
                thread.start()
            return working > 0

    def _working(self) -> int:
        """How many threads aren't lost."""
        late = monotonic() - self._seconds
        return len(self._threads) - sum(began < late for began in self._began.values())

    def _free(self) -> bool:
        """Count this thread as one that compiles nothing; whether it is still needed."""
        thread = threading.current_thread()
        with self._counting:
            self._began.pop(thread, None)
            needed = self._working() <= THREADS
            if not needed:
                self._threads.remove(thread)
            return needed

    def _work(self) -> None:
        while self._free():
            form, future = self._todo.get()
            with self._counting:
                self._began[threading.current_thread()] = monotonic()
            try:
                with self._making:
                    self._backend = self._backend or self._make()
                future.set_result(self._backend.compile(form))
            except caught() as error:
                future.set_exception(error)
