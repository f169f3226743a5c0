"""What all routes share: the model, how it is called, and requests on their way into it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request

from foretoken.async_llm import AsyncLLM, OutputStream
from foretoken.engine.encoded import Encoded
from foretoken.engine.outputs import RequestOutput
from foretoken.errors import ForetokenError
from foretoken.sampling.params import SamplingParams
from foretoken.serve.errors import RETRY, ApiError, failed
from foretoken.serve.limits import body_of, check_length
from foretoken.serve.metrics import Metrics
from foretoken.serve.schema import Body, read
from foretoken.serve.settings import ServerSettings
from foretoken.serve.usage import metrics, usage

B = TypeVar("B", bound=Body)


class Server:
    """A model as it is served."""

    def __init__(self, llm: AsyncLLM, settings: ServerSettings) -> None:
        self.llm, self.settings = llm, settings
        self.started = int(time.time())
        self.context: int = llm.llm.engine.target.max_length
        self.vocab_size: int = llm.llm.engine.target.vocab_size
        self.opening = llm.llm.engine.target.opening
        queued = llm.llm.engine.max_queued
        # Texts that can be taken at once: nothing runs yet.
        self.most = None if queued is None else llm.llm.engine.target.free + queued
        self.metrics = Metrics(
            llm, settings.names[0], settings.metrics_prefix, self.context, settings.engine
        )

    @property
    def tokenizer(self) -> Any:
        """The model's; None without one."""
        return self.llm.llm.tokenizer

    async def read(self, request: Request, kind: type[B]) -> B:
        """A request's body. Raises `ApiError` for a wrong one, and for another model's."""
        raw = await body_of(request, self.settings.max_body)
        body = read(kind, raw, self.settings.ignore_unknown_fields)
        self.check_model(body.model)
        return body

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` for the name of a model that isn't served."""
        if name is not None and name not in self.settings.names:
            raise ApiError(
                404,
                f"The model {name[:80]!r} does not exist; this server has "
                f"{', '.join(map(repr, self.settings.names))}.",
                "model",
            )

    async def encoded(
        self, prompt: Any, params: SamplingParams, asked: int | None, field: str
    ) -> Encoded:
        """A prompt's token ids. `asked`: the tokens that were asked for by number; `field`: of the
        body, from which the prompt is. Raises `ApiError` and `ForetokenError` for what can't be
        served."""
        given = await asyncio.to_thread(self.llm.encoded, prompt, params, self.context)
        check_length(given.ids, asked, self.context, self.opening, field)
        most = given.params.max_tokens
        if asked is None and most is not None:  # a default's: as many as there is room for
            room = self.llm.llm.engine.target.budget.longest(self.context)
            fits = max(1, room - len(self.opening or given.ids))
            given = given._replace(params=replace(given.params, max_tokens=min(most, fits)))
        predicted = given.params.prediction
        if predicted is None or len(predicted) <= self.context:
            return given
        # More can't be written, and the engine, which reads it, is everybody's.
        return given._replace(params=replace(given.params, prediction=predicted[: self.context]))

    async def submit(self, name: str, given: Seq[Encoded], arrived: float) -> Answering:
        """Queue an answer's requests: all of them, or none. name: the answer's; arrived: when it
        was asked for, as `perf_counter` tells it. Raises `ApiError` for more than there will ever
        be places for: who was told that the queue is full would ask again for ever."""
        count = sum(prompt.params.n for prompt in given)
        if self.most is not None and count > self.most:
            told = f"{count} texts are asked for, and this server takes {self.most} at a time"
            raise ApiError(400, f"{told}; ask for fewer.", "n" if len(given) == 1 else "prompt")
        answering = Answering(self, name, arrived)
        try:
            for place, prompt in enumerate(given):
                await answering.add(prompt, f"{name}-{place}")
        except BaseException as error:
            answering.close()
            if isinstance(error, ForetokenError):
                await self.check_health()
            raise
        return answering

    async def check_health(self) -> None:
        """Raise `ApiError` where nothing is served any more."""
        try:
            await self.llm.check_health()
        except ForetokenError as error:
            raise ApiError(503, str(error), headers=RETRY) from error


class Answering:
    """The requests of one answer while they are served, until `close` ends them."""

    def __init__(self, server: Server, name: str, arrived: float) -> None:
        """arrived: since when its requests are timed, as `perf_counter` tells it."""
        self.server, self.name, self.created = server, name, int(time.time())
        self._arrived = arrived
        self.streams: list[OutputStream] = []
        self._watches = contextlib.ExitStack()

    async def add(self, given: Encoded, name: str) -> None:
        """Queue one more."""
        watch = self.server.metrics.watch(given.params)
        prompt = {"prompt_token_ids": given.ids, "prompt": given.text}
        stream = await self.server.llm.submit(
            prompt, given.params, name, observer=watch.see, arrived=self._arrived
        )
        self.streams.append(stream)
        self._watches.callback(watch.close)

    def close(self) -> None:
        """End what hasn't ended."""
        for stream in self.streams:
            stream.close()
        self._watches.close()

    def opening(self, kind: str) -> dict[str, Any]:
        """What answers, and every chunk of a stream, begin with."""
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.server.settings.names[0],
        }

    def totals(self, outputs: Seq[RequestOutput]) -> dict[str, Any]:
        """What a whole answer, or the last chunk of a stream, ends with."""
        told: dict[str, Any] = {"usage": usage(outputs), "system_fingerprint": None}
        if self.server.settings.request_metrics != "none":
            told["metrics"] = metrics(outputs)
        return told


def checked(output: RequestOutput) -> RequestOutput:
    """The output. Raises `ApiError` where it ended by an error, or was cut off. A grammar that
    doesn't compile is the body's mistake; other errors are the engine's, or pass."""
    if output.error is not None and output.overloaded:
        raise ApiError(503, output.error, headers=RETRY)
    if output.error is not None:
        raise ApiError(400, output.error) if output.wrong_grammar else failed(output.error)
    if any(sample.finish_reason == "cancelled" for sample in output.outputs):
        raise ApiError(503, "The request was ended by the server; send it again.", headers=RETRY)
    return output
