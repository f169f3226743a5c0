"""Loads on a server with OpenAI's interface: closed and open loops of requests, and their times.

closed      so many clients, each of which asks again as soon as it is answered
open        requests come by a Poisson process of a rate, whatever is being answered

A request's clock starts as it is sent. Answers are streamed; their tokens are counted by the
server's usage. Only asyncio stands between the sockets and the clock, as the client runs on the
processor that it measures.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from time import perf_counter
from typing import Any

from foretoken.errors import ForetokenError


class Unserved(ForetokenError):
    """A request that wasn't answered, with the reason."""


@dataclass
class Answer:
    """One answer's times in seconds from the beginning of the run; tokens: written."""

    began: float
    blocks: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.blocks[0] - self.began

    def done(self, until: float) -> float:
        """The share of its parts that had come by then."""
        return sum(block <= until for block in self.blocks) / len(self.blocks)

    @property
    def per_token(self) -> float:
        """Seconds a token after the first, or 0 where there is none."""
        spent = self.blocks[-1] - self.blocks[0]
        return spent / (self.tokens - 1) if self.tokens > 1 else 0.0


@dataclass(frozen=True)
class Wanted:
    """What a good answer keeps to, in seconds: the first token, and each one after it."""

    first: float
    per_token: float

    def met(self, answer: Answer) -> bool:
        return answer.first <= self.first and answer.per_token <= self.per_token


async def closed(
    port: int, bodies: Seq[dict[str, Any]], clients: int
) -> tuple[list[Answer], float]:
    """All bodies, by so many clients, and until when all of them were busy, in seconds. Raises
    `Unserved`."""
    began, waiting = perf_counter(), iter(bodies)
    answers: list[Answer] = []
    ends: list[float] = []

    async def client() -> None:
        for body in waiting:
            answers.append(await ask(port, body, began))
        ends.append(perf_counter() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(clients, len(bodies))):
            group.create_task(client())
    return answers, min(ends)


async def opened(
    port: int, bodies: Seq[dict[str, Any]], rate: float, seed: int = 0
) -> list[Answer]:
    """All bodies, so many a second on average; the same arrivals for the same seed. Raises
    `Unserved`."""
    chance, began, due = Random(seed), perf_counter(), 0.0
    async with asyncio.TaskGroup() as group:
        tasks = []
        for body in bodies:
            due += chance.expovariate(rate)
            await asyncio.sleep(due - (perf_counter() - began))
            tasks.append(group.create_task(ask(port, body, began)))
    return [task.result() for task in tasks]


async def ask(port: int, body: dict[str, Any], origin: float) -> Answer:
    """One streamed completion. Raises `Unserved` for anything but a whole answer."""
    answer = Answer(perf_counter() - origin)
    ended = False
    async for event in _events(port, body):
        if event == b"[DONE]":
            ended = True
            break
        told = json.loads(event)
        if "error" in told:
            raise Unserved(str(told["error"])[:300])
        if told.get("choices"):
            answer.blocks.append(perf_counter() - origin)
        if told.get("usage"):
            answer.tokens = told["usage"]["completion_tokens"]
    if not ended or not answer.tokens or not answer.blocks:
        raise Unserved("a stream ended before its answer")
    return answer


async def _events(port: int, body: dict[str, Any]) -> AsyncGenerator[bytes]:
    """The data of a stream's events. A line is an event's or one of the chunks' frames."""
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            said = await reader.read(3000)
            raise Unserved(f"{status!r} {said[-300:]!r}")
        async for line in reader:
            if line.startswith(b"data: "):
                yield line[6:].strip()
    finally:
        writer.close()


def summary(answers: Seq[Answer], wanted: Wanted, until: float | None = None) -> dict[str, Any]:
    """What a run comes to: tokens and requests a second, requests that kept to what is wanted, and
    percentiles of the times in milliseconds. itl: a request's mean time a token; block: between
    two parts of a stream.

    Rates are taken up to `until`, by default the last answer's end: once the first of several
    clients has nothing left to ask, there are fewer. An answer counts as far as it had come.
    """
    end = max(answer.blocks[-1] for answer in answers) if until is None else until
    seconds = end - min(answer.began for answer in answers)
    gaps = [b - a for answer in answers for a, b in pairwise(answer.blocks)]
    done = [answer.done(end) for answer in answers]
    good = [share * wanted.met(answer) for share, answer in zip(done, answers, strict=True)]
    tokens = [share * answer.tokens for share, answer in zip(done, answers, strict=True)]
    return {
        "requests": len(answers),
        "tokens": sum(answer.tokens for answer in answers),
        "seconds": seconds,
        "tokens_per_second": sum(tokens) / seconds,
        "requests_per_second": sum(done) / seconds,
        "goodput": sum(good) / seconds,
        "ttft_ms": _percentiles([answer.first for answer in answers]),
        "itl_ms": _percentiles([answer.per_token for answer in answers]),
        "block_ms": _percentiles(gaps),
    }


def _percentiles(seconds: Seq[float]) -> dict[str, float]:
    if len(seconds) < 2:
        only = 1000 * seconds[0] if seconds else 0.0
        return {"p50": only, "p90": only, "p99": only}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{place}": 1000 * cuts[place - 1] for place in (50, 90, 99)}
