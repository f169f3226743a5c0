"""Whether a server under mixed load answers as it should, loses nothing, drains and comes back.

--requests requests by --clients clients at --slots slots: chats and texts, whole and streamed,
greedy and sampled, with stop strings, predictions, log-probabilities and several samples; some
clients leave in the middle, some send bad bodies. The server copies drafts by --method; every
answer must be plain decoding's for its seed, written offline: in float32 but for near ties, which
are counted, and for --exact requests in float64 without exception. What those who left had read
must be the beginning of it. Afterwards no request may be left, every slot must take one, and the
memory, threads and files of the second half must be those of the first. SIGTERM must let what runs
come to its end; after kill -9 a new server must answer at the same port. Example:

    python benchmarks/mixed.py --check
    python benchmarks/mixed.py --requests 200 --exact 100 --out build
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
from loads import Unserved
from serving import call
from shared import bundled, exit_with, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.bench.measure.identity import compare
from foretoken.progress import track

LOOKS = 10
"""How often the process is looked at, evenly over the requests."""
GROWTH = 0.05
"""Of resident memory from the first half of the requests to the second."""
POOL = min(32, (os.cpu_count() or 1) + 4)
"""Threads that an event loop's pool may still start, one for each that is needed at once."""
CONTEXT = 1024
KINDS = {"whole": 35, "streamed": 35, "left": 15, "bad": 15}
"""Kind of a request -> how many of a hundred."""
BAD: list[dict[str, Any]] = [
    {"max_tokens": 0},
    {"max_tokens": 10**6},
    {"temperature": -1},
    {"temperature": "warm"},
    {"n": 1000},
    {"stop": [1]},
    {"seed": 2**63},
    {"logit_bias": {"x": 1}},
    {"nonsense": 1},
    {"guided_json": {}},
    {"structured_outputs": {"regex": "("}},
    {"prediction": {"type": "text"}},
    {"model": "another"},
]
_PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Ask:
    """One request. sampling: fields that are `SamplingParams`' under the same names. leaves: after
    so many events of a stream, or hundredths of a second."""

    kind: str
    text: str
    chat: bool
    stream: bool
    sampling: dict[str, Any]
    extra: dict[str, Any]
    leaves: int

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def said(self) -> Any:
        return [{"role": "user", "content": self.text}]

    @property
    def body(self) -> dict[str, Any]:
        asked = {"messages": self.said} if self.chat else {"prompt": self.text}
        return (
            asked | self.sampling | {"stream": self.stream, "return_token_ids": True} | self.extra
        )

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(**self.sampling)


@dataclass
class Heard:
    """What a client got. texts, ids: of each sample, as far as it was read."""

    texts: dict[int, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    wrong: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        place = choice["index"]
        part = choice.get("message") or choice.get("delta") or choice
        text = part.get("text") or part.get("content") or ""
        self.texts[place] = self.texts.get(place, "") + text
        self.ids[place] = self.ids.get(place, []) + (choice.get("token_ids") or [])


def made(seed: int, count: int) -> list[Ask]:
    """So many requests; a seed fixes them."""
    chance = Random(seed)
    texts = [prompt.turns[0] for prompt in bundled() if len(prompt.turns[0]) < 500]
    return [_one(chance, texts) for _ in range(count)]


def _one(chance: Random, texts: list[str]) -> Ask:
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    text = chance.choice(texts)
    if chance.random() < 0.5:  # many texts that begin alike
        text = text[: chance.randint(8, len(text))]
    sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": chance.randint(3, 40)}
    if chance.random() < 0.6:
        sampling |= {"temperature": chance.choice((0.5, 1.0)), "seed": chance.getrandbits(40)}
        sampling |= {"n": chance.choice((1, 1, 1, 2)), "top_p": chance.choice((1.0, 0.9))}
    if chance.random() < 0.4:
        sampling["stop"] = chance.sample((" the", ".", "\n", "e", " a", "ing"), 2)
    extra: dict[str, Any] = {}
    if chance.random() < 0.3:
        extra["prediction"] = {"type": "content", "content": chance.choice(texts)}
    if chance.random() < 0.2:
        extra["cache_salt"] = chance.choice("ab")
    chat, stream = chance.random() < 0.5, kind == "streamed" or chance.random() < 0.5
    if kind == "bad":
        extra |= chance.choice(BAD)
    if chance.random() < 0.2:
        extra |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    return Ask(kind, text, chat, stream and kind != "whole", sampling, extra, chance.randint(1, 6))


async def crowd(
    url: str, asks: list[Ask], clients: int, done: Callable[[], object] = lambda: None
) -> list[Heard]:
    """What became of each request, by so many clients."""
    waiting = iter(enumerate(asks))
    heard = [Heard() for _ in asks]
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE) as client:

        async def one() -> None:
            for place, ask in waiting:
                try:
                    await _sent(client, ask, heard[place])
                except Exception as error:  # whatever it is, it is not an answer
                    heard[place].wrong = f"{type(error).__name__}: {error}"
                done()

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one())
    return heard


async def _sent(client: httpx.AsyncClient, ask: Ask, heard: Heard) -> None:
    if ask.kind == "bad":
        _refused(await client.post(ask.path, json=ask.body), heard)
    elif ask.stream:
        await _streamed(client, ask, heard)
    elif ask.kind == "left":
        try:
            async with asyncio.timeout(ask.leaves / 100):
                await _whole(client, ask, heard)
        except TimeoutError:
            pass
    else:
        await _whole(client, ask, heard)


def _refused(answer: httpx.Response, heard: Heard) -> None:
    error = answer.json().get("error", {})
    official = set(error) == {"message", "type", "param", "code"} and error["message"]
    if not 400 <= answer.status_code < 500 or not official:
        heard.wrong = f"a bad body: {answer.status_code} {answer.text[:200]}"


async def _whole(client: httpx.AsyncClient, ask: Ask, heard: Heard) -> None:
    answer = await client.post(ask.path, json=ask.body)
    if answer.status_code != 200:
        heard.wrong = f"{answer.status_code} {answer.text[:200]}"
        return
    for choice in answer.json()["choices"]:
        heard.add(choice)


async def _streamed(client: httpx.AsyncClient, ask: Ask, heard: Heard) -> None:
    count, last = 0, ""
    async with client.stream("POST", ask.path, json=ask.body) as answer:
        if answer.status_code != 200:
            heard.wrong = f"{answer.status_code} {(await answer.aread())[:200]!r}"
            return
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            last = line[6:]
            if last == "[DONE]":
                break
            told = json.loads(last)
            if "error" in told:
                heard.wrong = f"in a stream: {told['error']}"
                return
            for choice in told["choices"]:
                heard.add(choice)
            count += 1
            if ask.kind == "left" and count == ask.leaves:
                return
    if last != "[DONE]":
        heard.wrong = "a stream ended before its answer"


def judged(llm: LLM, asks: list[Ask], heard: list[Heard]) -> Counter[str]:
    """What the answers are beside plain decoding's: identical, near_tie, different, left or bad.
    Raises nothing for wrong ones; the first few are printed."""
    asked = [ask for ask in asks if ask.kind != "bad"]
    prompts = [llm.chat_prompt(ask.said) if ask.chat else ask.text for ask in asked]
    known = iter(llm.generate(prompts, [ask.params for ask in asked]))
    found: Counter[str] = Counter()
    for ask, got in zip(asks, heard, strict=True):
        output = None if ask.kind == "bad" else next(known)
        outcome = (
            "wrong" if got.wrong else "bad" if output is None else _beside(llm, ask, got, output)
        )
        if outcome in ("wrong", "different"):
            print(f"{outcome}: {ask}: {got}", file=sys.stderr)
        found[outcome] += 1
    return found


def _beside(llm: LLM, ask: Ask, got: Heard, output: Any) -> str:
    if ask.kind == "left":
        pairs = [(got.texts[place], output.outputs[place].text) for place in got.texts]
        return "left" if all(text.startswith(part) for part, text in pairs) else "different"
    worst = "identical"
    for sample in output.outputs:
        text, ids = got.texts.get(sample.index), got.ids.get(sample.index, [])
        if text == sample.text and ids == sample.token_ids:
            continue
        if sample.index or ids == sample.token_ids:  # no near tie explains another text of these
            return "different"
        worst, _ = compare(llm, output.prompt_token_ids, ask.params, sample.token_ids, ids)
    return (
        worst if worst != "identical" or set(got.texts) == set(range(ask.params.n)) else "different"
    )


class Server:
    """`foretoken serve` at a port, as a process."""

    def __init__(self, given: Namespace, dtype: str, port: int) -> None:
        self.url, self.port, self.slots = f"http://127.0.0.1:{port}", port, given.slots
        words = ["serve", given.model, "--port", str(port), "--dtype", dtype]
        words += ["--method", given.method, "--max-num-seqs", str(given.slots)]
        words += ["--max-model-len", str(CONTEXT), "--generation-config", "vllm"]
        env = os.environ | {"MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
        command = [sys.executable, "-m", "foretoken", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env)
        self._await(lambda: call(port, "GET", "/health")[0] == 200, "start")

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if holds():
                    return
            except (OSError, HTTPException):
                pass
            time.sleep(0.05)
        raise Unserved(f"the server doesn't {what}")

    def load(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(call(self.port, "GET", "/load")[1])
        return counts

    def look(self) -> dict[str, float]:
        """The process with nothing under way: MiB resident, threads, open files."""
        self._await(lambda: self.load()["server_load"] == 0, "come to rest")
        time.sleep(1)  # connections that were closed
        proc = Path(f"/proc/{self.process.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        return {
            "resident": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
            "threads": len(list((proc / "task").iterdir())),
            "files": len(list((proc / "fd").iterdir())),
        }

    @contextmanager
    def streams(self, count: int, tokens: int) -> Iterator[list[httpx.Response]]:
        """So many running streams of one long answer each."""
        body = {"prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        body |= {"max_draft_tokens": 0}
        with httpx.Client(base_url=self.url, timeout=_PATIENCE) as client:
            begun = [
                client.send(client.build_request("POST", "/v1/completions", json=body), stream=True)
                for _ in range(count)
            ]
            yield begun
            for answer in begun:
                answer.close()

    def slots_taken(self) -> int:
        """How many of as many requests as there are slots run at once."""
        with self.streams(self.slots, CONTEXT - 64):
            time.sleep(0.2)
            return self.load()["running"]

    def drained(self) -> int:
        """How many of running streams come to their end after SIGTERM; the server is gone then."""
        with self.streams(self.slots, 200) as begun:
            self.process.send_signal(signal.SIGTERM)
            ends = [[line for line in answer.iter_lines() if line][-2:] for answer in begun]
        self.process.wait(_PATIENCE)
        return sum(
            len(end) == 2 and '"finish_reason":"length"' in end[0] and end[1] == "data: [DONE]"
            for end in ends
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def run(given: Namespace, dtype: str, count: int) -> dict[str, Any]:
    """One dtype: all requests, what is left of them, and the ends of the server."""
    asks, port = made(given.seed, count), free_port()
    server, began = Server(given, dtype, port), time.perf_counter()
    try:
        with track(f"Requests, {dtype}", count, True) as advance:
            start, heard, looks = server.look(), [], []
            for i in range(LOOKS):
                part = asks[i * count // LOOKS : (i + 1) * count // LOOKS]
                heard += asyncio.run(crowd(server.url, part, given.clients, advance))
                looks.append(server.look())
            first, second = middle(looks[: LOOKS // 2]), middle(looks[LOOKS // 2 :])
        seconds = time.perf_counter() - began
        taken, drained = server.slots_taken(), -1
        server.look()
        with server.streams(given.slots, 200):
            server.kill()
        server = Server(given, dtype, port)
        again = asyncio.run(crowd(server.url, asks[:32], given.clients))
        drained = server.drained()
    finally:
        server.kill()
    llm = LLM(given.model, dtype=dtype, max_num_seqs=given.slots, max_model_len=CONTEXT)
    return {
        "dtype": dtype,
        "requests": count,
        "seconds": round(seconds, 1),
        "kinds": dict(Counter(ask.kind for ask in asks)),
        "answers": dict(judged(llm, asks, heard)),
        "after_kill": dict(judged(llm, asks[:32], again)),
        "memory": {"start": start, "first half": first, "second half": second},
        "slots_taken": taken,
        "drained": drained,
    }


def middle(looks: list[dict[str, float]]) -> dict[str, float]:
    """The last look, but the median of memory: what an allocator keeps at rest varies."""
    return looks[-1] | {"resident": median(look["resident"] for look in looks)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def missed(row: dict[str, Any], slots: int) -> list[str]:
    """What a run did that it may not."""
    before, after = row["memory"]["first half"], row["memory"]["second half"]
    answers = Counter(row["answers"]) + Counter(row["after_kill"])
    grown = after["resident"] / before["resident"] - 1
    found = {
        f"{answers['wrong']} requests were not served as asked": answers["wrong"],
        f"{answers['different']} texts differ": answers["different"],
        f"{answers['near_tie']} near ties in float64": row["dtype"] == "float64"
        and answers["near_tie"],
        f"resident memory grew by {grown:.1%}": grown > GROWTH,
        f"{after['threads'] - before['threads']} threads more": after["threads"]
        > before["threads"] + POOL,
        f"{after['files'] - before['files']} files more": after["files"] > before["files"],
        f"{row['slots_taken']} of {slots} slots took a request": row["slots_taken"] != slots,
        f"{row['drained']} of {slots} streams ended after SIGTERM": row["drained"] != slots,
    }
    return [f"{row['dtype']}: {what}" for what, wrong in found.items() if wrong]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--method", default="pld", help="one of chosen drafts (pld)")
    parser.add_argument("--requests", type=int, default=2000, help="in float32 (2000)")
    parser.add_argument("--exact", type=int, default=400, help="in float64 (400)")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--slots", type=int, default=8, help="sequences served at a time (8)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (0)")
    parser.add_argument("--check", action="store_true", help="fail unless all is as wanted")
    given = parser.parse_args()
    sizes = {"float64": given.exact, "float32": given.requests}
    rows = [run(given, dtype, count) for dtype, count in sizes.items() if count]
    names = ("identical", "near_tie", "different", "wrong", "left", "bad")
    lines = [["dtype", "requests", *names, "MiB: start", "first half", "second"]]
    for row in rows:
        counts = (str(row["answers"].get(name, 0)) for name in names)
        memory = (str(one["resident"]) for one in row["memory"].values())
        lines.append([row["dtype"], str(row["requests"]), *counts, *memory])
    table(lines)
    bad = [what for row in rows for what in missed(row, given.slots)]
    print(f"\nNot as wanted: {'; '.join(bad) or 'nothing'}.")
    about = {"method": given.method, "clients": given.clients, "slots": given.slots}
    save("serving-mixed", given, {**about, "seed": given.seed, "runs": rows, "met": not bad})
    return 1 if bad and given.check else 0


if __name__ == "__main__":
    exit_with(main)
