"""One thread owns an engine: it runs every step, and what other threads ask for between steps.

The thread starts with the first call. While nothing runs it waits, and holds nothing of the engine,
so that an `LLM` that nobody refers to any more is freed, and the thread ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from time import perf_counter
from typing import TypeVar

from foretoken.engine.checks import check_device
from foretoken.engine.encoded import Encoded
from foretoken.engine.engine import Engine
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.request import Request
from foretoken.errors import ForetokenError, caught, described
from foretoken.machine import yield_cores
from foretoken.protocols import Drafter

_log = logging.getLogger("foretoken")

T = TypeVar("T")

Order = Callable[[], None]
"""What the thread is to do between two steps."""

Receiver = Callable[[RequestOutput], None]
"""Called on the thread with a request's output each time that it has changed; what other threads
shall read of an unfinished one must be copied."""

_live: weakref.WeakSet[Worker] = weakref.WeakSet()
_orders: weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[Order | None]] = (
    weakref.WeakKeyDictionary()
)


class Worker:
    """Runs an engine; calls from any thread are served in turn."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._receivers: dict[int, Receiver] = {}
        # A thread may take it twice: while it posts, the collector may have it throw a stream away,
        # which posts too.
        self._posting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._gone = "This LLM is closed; load another one."
        weakref.finalize(self, self._orders.put, None).atexit = False
        _live.add(self)

    @property
    def engine(self) -> Engine:
        """Raises `ForetokenError` where it was closed, or loaded by another process."""
        if self._engine is None:
            raise ForetokenError(self._gone)
        if os.getpid() != self._process:
            raise ForetokenError(
                "This LLM was loaded by the process that this one was forked from, which has the "
                "thread that runs it; load it in the process that uses it."
            )
        return self._engine

    @property
    def closed(self) -> bool:
        return self._engine is None

    def call(self, work: Callable[[Engine], T]) -> T:
        """Run `work` between two steps and return what it does, or raise what it raises."""
        return self.submit(work).result()

    def submit(self, work: Callable[[Engine], T]) -> Future[T]:
        """Have `work` run between two steps, and don't wait for it. A result that is cancelled
        before its turn comes is not worked for."""
        result = Future[T]()
        if threading.current_thread() is self._thread:
            raise ForetokenError(
                "The LLM was called by a logits processor, a criterion or a tokenizer that it runs "
                "itself; call it from outside of its steps."
            )

        def order() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(work(self.engine))
            except BaseException as error:
                result.set_exception(error)

        yield_cores()
        self._post(order)
        return result

    def begin(
        self, given: Encoded, receiver: Receiver, arrived: float | None = None
    ) -> Future[Request]:
        """Add a request, whose outputs are sent to `receiver`. arrived: since when it is timed, as
        `perf_counter` tells it; None is now, which is before the step that runs has ended."""
        since = perf_counter() if arrived is None else arrived

        def add(engine: Engine) -> Request:
            request = engine.add(given.ids, given.params, given.text, arrived=since)
            self.follow(request.id, receiver)
            return request

        return self.submit(add)

    def check(self) -> None:
        """Raise `ForetokenError` where nothing can be asked for any more."""
        _ = self.engine
        if self._thread is not None and not self._thread.is_alive():
            raise ForetokenError("The thread that runs this LLM has ended; load it once more.")

    def follow(self, request_id: int, receiver: Receiver) -> None:
        """Have a request's outputs sent to `receiver`. Only on the thread, in work of `call`."""
        self._receivers[request_id] = receiver

    def leave(self, request_id: int) -> None:
        """Send a request's outputs nowhere any more. Only on the thread, in work of `call`."""
        self._receivers.pop(request_id, None)

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests before the next step; the ids are read only then. It doesn't wait, so that
        any thread may do it at any time, be it as an iterator is thrown away."""

        def order() -> None:
            for request_id in request_ids:
                self._receivers.pop(request_id, None)
                if self._engine is not None:
                    self._engine.cancel(request_id)

        with contextlib.suppress(ForetokenError):  # closed: everything has ended
            self._post(order)

    def forsake(self, added: Future[Request]) -> None:
        """End a request that `begin` adds, or has added, as `cancel` does."""

        def known() -> Iterator[int]:
            if not added.cancelled() and added.exception() is None:
                yield added.result().id

        self.cancel(known())

    def close(self) -> None:
        """End what runs and forget the engine."""
        with contextlib.suppress(ForetokenError):  # closed already
            self._post(self._shut)
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()

    def _post(self, order: Order) -> None:
        with self._posting:
            self.check()  # raises where nobody would carry the order out
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_serve,
                    args=(self._orders, weakref.ref(self)),
                    name="foretoken-engine",
                    daemon=True,
                )
                _orders[self._thread] = self._orders
                self._thread.start()
            self._orders.put(order)

    def work(self, order: Order) -> bool:
        """On the thread: carry out an order, and step until nothing is left to do. Returns whether
        further orders may come. Whatever raises, everybody who waits is answered."""
        try:
            order()
            while self._engine is not None and self._engine.busy:
                self._step(self._engine)
                self._carry_out()
        except BaseException as error:
            self._give_up(error)
        if self._engine is None:
            self._carry_out()  # what was posted as it closed is told so
        self._answer_rest()
        return self._engine is not None

    def _carry_out(self) -> None:
        """All orders that are there."""
        while not self._orders.empty():
            order = self._orders.get()
            if order is not None:
                order()

    def _step(self, engine: Engine) -> None:
        """One step. Whatever it raises, an interrupt from a user's own code too, is the answer to
        those who wait: nobody else would hear of it. Raises `ForetokenError` where requests failed
        by a device that serves none any more."""
        try:
            outputs = engine.step()
        except BaseException as error:
            outputs = engine.fail_all(error)
        self._send(outputs)
        if any(output.error is not None for output in outputs):
            check_device(engine.target.device)

    def _send(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            receiver = self._receivers.get(output.request_id)
            if receiver is not None:
                receiver(output)
            if output.finished:
                self._receivers.pop(output.request_id, None)

    def _give_up(self, error: BaseException) -> None:
        """After an error of the engine's own or a receiver's: nobody knows what is left of it."""
        told = described("The engine", error)
        _log.error("%s; it has stopped.", told, exc_info=error)
        self._gone = f"This LLM has stopped: {str(told).rstrip('.')}; load another one."
        with self._posting:
            self._engine = None

    def _answer_rest(self) -> None:
        """Nothing runs any more, so whoever still waits would wait for ever."""
        told = "The engine lost the request; send it again."
        error = ForetokenError(self._gone if self._engine is None else told)
        waiting, self._receivers = self._receivers, {}
        for request_id, receiver in waiting.items():
            with contextlib.suppress(BaseException):  # it may be what has raised
                receiver(RequestOutput.refused(error, request_id=request_id))

    def _shut(self) -> None:
        if self._engine is not None:
            outputs = self._engine.cancel_all()
            with self._posting:
                self._engine = None
            self._send(outputs)


def check_unserved(drafter: Drafter) -> None:
    """Raise `ForetokenError` where an open LLM drafts with this object or a part of it, which would
    be bound to another target under it."""
    name = type(drafter).__name__
    try:
        own = _objects(drafter)
    except caught() as error:  # an outsider's
        raise described(f"The drafter {name}", error) from error
    if own & _in_use():
        raise ForetokenError(
            f"The drafter {name}, or a part of it, drafts for another LLM; make an object for each "
            "LLM, or close the other one first."
        )


def _in_use() -> set[int]:
    """The ids of the drafters of open LLMs, and of all that these are made of."""
    engines = (worker._engine for worker in list(_live))
    return set[int]().union(*(_objects(e.drafter) for e in engines if e is not None))


def _objects(drafter: Drafter) -> set[int]:
    """The ids of a drafter and of all that it is made of."""
    return {id(drafter)}.union(*map(_objects, drafter.parts))


def _serve(orders: SimpleQueue[Order | None], owner: weakref.ref[Worker]) -> None:
    """The thread: waits for orders, holding the worker only while it works."""
    while (order := orders.get()) is not None:
        worker = owner()
        if worker is None or not worker.work(order):
            return
        del worker, order
        if orders.empty():
            yield_cores()


@atexit.register
def _stop() -> None:
    """A thread that is in the middle of a pass as the interpreter goes would crash it, and so would
    one that frees the model of a worker which is gone already."""
    for worker in list(_live):
        worker.close()
    for thread, orders in list(_orders.items()):
        orders.put(None)  # by now a worker that goes can't say so itself
        thread.join()
