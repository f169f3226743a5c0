"""`AsyncLLM`: `LLM` for programs that wait by `await`.

async with AsyncLLM("path-or-hub-id", speculative_config={"method": "pld"}) as llm:
    async for output in llm.generate("…", SamplingParams(max_tokens=64)):
        print(output.text)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from foretoken.engine import prompts as reader
from foretoken.engine.conversations import Messages
from foretoken.engine.encoded import Encoded, encoded
from foretoken.engine.engine import Engine
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.prompts import Prompt
from foretoken.engine.request import Request
from foretoken.engine.streamed import Streamed
from foretoken.engine.worker import Receiver, Worker
from foretoken.errors import ForetokenError, shown
from foretoken.llm import LLM
from foretoken.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from foretoken.models.model import CausalLM


class Load(NamedTuple):
    """How many requests run, and how many wait for a place."""

    running: int
    waiting: int


class AsyncLLM:
    """A target model with a decoding method, for event loops.

    Requests of several loops and threads are served in one batch by one thread. Use it in an
    `async with` block, or call `shutdown`, to free the memory at a certain moment.

    Args:
        model: what `LLM` takes; or an `LLM`, which then is served by both, and has no options.
        options: `LLM`'s.

    Raises:
        ForetokenError: for anything missing, unknown or not servable, in one sentence.
    """

    def __init__(
        self, model: str | Path | PreTrainedModel | CausalLM | LLM, **options: Any
    ) -> None:
        if isinstance(model, LLM) and options:
            raise ForetokenError(
                f"The LLM is loaded already, and {next(iter(options))} can't be changed any more; "
                "give it to LLM."
            )
        self.llm = model if isinstance(model, LLM) else LLM(model, **options)
        # One that is written to its end and that nobody holds any more will not be read.
        self._streams: WeakValueDictionary[Hashable, OutputStream] = WeakValueDictionary()
        self._read: list[_Reading] = []
        self._changing = threading.Lock()

    def __repr__(self) -> str:
        return f"Async{self.llm!r}"

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    @property
    def load(self) -> Load:
        """The requests that were asked for here and that are still to be written; not those of
        which the last output has yet to be read."""
        with self._changing:
            started = [stream.started for stream in self._streams.values() if not stream.written]
        return Load(sum(started), len(started) - sum(started))

    async def generate(
        self,
        prompt: Prompt | Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield a request's output as it grows; `.outputs[i].text` is the text so far.

        A prompt is one that `LLM.generate` takes, or a conversation. Whoever reads slowly gets the
        newest output, not each. A generator that is closed, or whose task is cancelled, ends its
        request before the next step. While it runs, text that could still become part of a stop
        string is withheld. An error is in the last output, as `.error`. `request_id` is a name for
        `abort`. Raises `ForetokenError` for a request that can't be served.
        """
        stream = await self.submit(prompt, sampling_params, request_id)
        async with stream:
            async for output in stream:
                yield output

    async def submit(
        self,
        prompt: Prompt | Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        observer: Receiver | None = None,
        arrived: float | None = None,
    ) -> OutputStream:
        """Queue a request; returns the stream of its outputs, to be read in an `async with` block.

        As `generate`, but what can't be served is refused here, before anything is read. `observer`
        is called on the engine's thread with the output after each step that changed it; it must
        be quick, must not raise, and must not keep the output. `arrived`: since when the request is
        timed, as `time.perf_counter` tells it; None is now.
        """
        since = perf_counter() if arrived is None else arrived
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise ForetokenError(f"sampling_params is {shown(params)}; give SamplingParams(…).")
        reading = _Reading(request_id)
        with self._changing:
            self._read.append(reading)
        try:
            given = await asyncio.to_thread(self.encoded, prompt, params)
            stream = OutputStream(self, given, request_id, observer, since)
            await stream.begin()
        finally:
            with self._changing:
                self._read.remove(reading)
        if reading.aborted:
            await stream.abort()
        return stream

    def encoded(
        self, prompt: Prompt | Messages, params: SamplingParams, most: int | None = None
    ) -> Encoded:
        """A prompt's token ids, and its parameters with texts as ids. Takes a moment for a long
        text: call it on a thread. `most`: how many tokens of a text are of use; of one that has far
        more, only a beginning with more than that is read."""
        return encoded(reader.single(prompt), params, self.llm.tokenizer, most)

    async def abort(self, request_id: str | int) -> None:
        """End a request before the next step, by the name that it was given or by its output's
        `request_id`: its last output says "cancelled". Nothing happens where there is none."""
        with self._changing:
            streams = list(self._streams.values())
            for reading in self._read:
                reading.aborted |= reading.name is not None and reading.name == request_id
        for stream in streams:
            if request_id in (stream.name, stream.number):
                await stream.abort()

    async def check_health(self) -> None:
        """Raise `ForetokenError` where no request could be served any more."""
        self.llm.worker.check()

    async def reset_prefix_cache(self) -> bool:
        """Forget what caches have of earlier texts; as in vLLM, whether that could be done."""
        return await asyncio.to_thread(self.llm.reset_prefix_cache)

    async def shutdown(self) -> None:
        """End what runs and free the model's memory; further calls raise `ForetokenError`."""
        await asyncio.to_thread(self.llm.close)

    def join(self, stream: OutputStream) -> None:
        """Remember a stream. Raises `ForetokenError` where its name is taken."""
        with self._changing:
            if stream.key in self._streams:
                raise ForetokenError(
                    f"A request with the id {shown(stream.name)} is being served; give each one an "
                    "id of its own, or none."
                )
            self._streams[stream.key] = stream

    def leave(self, stream: OutputStream) -> None:
        """Forget a stream."""
        with self._changing:
            if self._streams.get(stream.key) is stream:  # else one that has taken its name
                del self._streams[stream.key]


@dataclass(eq=False)
class _Reading:
    """A request whose prompt is being read, and that is queued after that."""

    name: str | None
    aborted: bool = False


class OutputStream:
    """One request's outputs as they grow: an async iterator, for one task.

    Leaving its `async with` block ends the request, if it hasn't ended.
    """

    def __init__(
        self,
        owner: AsyncLLM,
        given: Encoded,
        name: str | None,
        observer: Receiver | None,
        arrived: float,
    ) -> None:
        self.name, self._arrived = name, arrived
        self.key: Hashable = object() if name is None else name
        self._owner, self._given, self._observer = owner, given, observer
        self._newest = _Newest(asyncio.get_running_loop())
        self._shown = Streamed(owner.llm.tokenizer, given.params)
        self._added: Future[Request] | None = None
        self._request: Request | None = None
        self._ended = False
        self.written = False  # to the end, which may not have been read

    @property
    def number(self) -> int | None:
        """The `request_id` of the outputs."""
        return None if self._request is None else self._request.id

    @property
    def started(self) -> bool:
        """Whether it has left the queue."""
        return self._request is not None and self._request.stats.queue_time is not None

    @property
    def _worker(self) -> Worker:
        return self._owner.llm.worker

    async def begin(self) -> None:
        """Queue the request. Raises `ForetokenError` where it can't be served."""
        self._owner.join(self)
        try:
            added = self._added = self._worker.begin(self._given, self._receive, self._arrived)
            try:
                self._request = await asyncio.wrap_future(added)
            except asyncio.CancelledError:
                self._worker.forsake(added)
                raise
        except BaseException:
            self._owner.leave(self)
            raise

    def _receive(self, output: RequestOutput) -> None:
        """On the engine's thread."""
        self.written = output.finished
        if self._observer is not None:
            self._observer(output)
        try:
            self._newest.put(output.standing())
        except RuntimeError:  # the event loop is closed: nobody will read it
            self._worker.cancel([output.request_id])
            self._owner.leave(self)

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        newest = (await self._newest.get())()
        output = self._shown.read(newest)
        if output.finished:
            if not newest.finished:  # the tokenizer's error ended the stream alone
                self._worker.cancel([newest.request_id])
            self._ended = True
            self._owner.leave(self)
        return output

    async def abort(self) -> None:
        """End the request; the iterator's next output is its last."""

        added = self._added
        if added is None:
            return  # it waits for nothing yet

        def end(engine: Engine) -> None:
            """After `added`, as orders are carried out in turn."""
            if added.cancelled() or added.exception() is not None:
                return
            number = added.result().id
            self._worker.leave(number)  # nothing comes after the last output
            if (output := engine.cancel(number)) is not None:
                self._receive(output)

        with contextlib.suppress(ForetokenError):  # closed: everything has ended
            await asyncio.wrap_future(self._worker.submit(end))

    async def __aenter__(self) -> OutputStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the request before the next step, without waiting for it."""
        self._owner.leave(self)
        if self.number is not None and not self._ended:
            self._worker.cancel([self.number])
        self._ended = True


class _Newest:
    """The newest output (`RequestOutput.standing`), from the engine's thread to a task of an event
    loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._there = loop, asyncio.Event()
        self._output: Callable[[], RequestOutput] | None = None
        self._changing = threading.Lock()

    def put(self, output: Callable[[], RequestOutput]) -> None:
        """Replaces one that hasn't been read. Raises `RuntimeError` where the loop is closed."""
        with self._changing:
            unread, self._output = self._output is not None, output
        if unread and self._loop.is_closed():
            raise RuntimeError("the event loop is closed")
        if not unread:
            self._loop.call_soon_threadsafe(self._there.set)

    async def get(self) -> Callable[[], RequestOutput]:
        """Waits for one that hasn't been read."""
        await self._there.wait()
        self._there.clear()
        with self._changing:
            output, self._output = self._output, None
        assert output is not None  # there is one whenever the event is set
        return output
