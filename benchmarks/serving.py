"""How fast `foretoken serve` is under load, with and without drafts, beside llama.cpp's server.

Rows are plain decoding, `--method` (sps where there is a draft model, else suffix) and auto; and,
in closed loops of 8 and 16 clients, llama-server where the model is a GGUF file, with as many slots
and threads, and a cache in float32. For each load every row has a server of its own; they take
turns, in another order each round, so that a ratio is of the same seconds. Prompts are --suite's,
as token ids; none comes twice to a server: where there are no new ones for a round, new servers
start. Nor does a prompt go on from another one that begins alike, at any server. Answers are
greedy, and from half to one and a half of --max-tokens long: of one length, they would all end in
the same step of plain decoding, and the next prompts would be read together.

    closed      some clients, each of which asks again as soon as it is answered; rates are taken
                as long as all are busy
    open        Poisson arrivals, at --share of the rate that plain served so many clients at

Goodput is of requests whose first token came within --first seconds and the others within
--per-token seconds each, on average. --check fails unless at 8 and 16 clients the fastest row
writes as many tokens a second as llama.cpp, auto at least 0.98 of plain's at every load, and more
than plain in closed loops of 1 to 4 clients. Where it was interrupted the same command goes on, as
long as source and models are the same; what is done is in --work until the end. A model's results
replace its earlier ones in serving.json. Example:

    python benchmarks/serving.py --model smollm2-135m-instruct.gguf --draft-model none \
        --suite spec-bench
    python benchmarks/serving.py --quick --out build
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from environments import libraries
from kept import Kept, code
from loads import Unserved, Wanted, closed, opened, summary
from shared import exit_with, options, save, stamp, table

from foretoken.bench.measure.environment import environment
from foretoken.bench.suites.suite import find_suite
from foretoken.files import fingerprint
from foretoken.machine import cache_folder
from foretoken.models.gguf import is_named
from foretoken.models.load import find
from foretoken.progress import track

PLAIN, AUTO, LLAMA = "plain", "auto", "llama.cpp"
FLOOR = 0.98
COMPARED, FEW = (8, 16), 4
WARM = 2  # requests to a new server that aren't counted: what is made once is made then
_PATIENCE = 180.0  # seconds to load


def rows(given: Namespace, kind: str, clients: int) -> list[str]:
    """The servers that are compared under a load."""
    ours = [PLAIN, given.method, AUTO]
    return [*ours, LLAMA] if kind == "closed" and clients in COMPARED and has_peer(given) else ours


def has_peer(given: Namespace) -> bool:
    return is_named(given.model) and (libraries() / "llama-server").is_file()


def command(given: Namespace, row: str, port: int) -> list[str]:
    """What starts a row's server."""
    slots, context = str(given.slots), given.longest + lengths(given)[-1] + 1
    if row == LLAMA:
        flags = {
            "--model": str(find(given.model)),
            "--port": str(port),
            "--parallel": slots,
            "--ctx-size": str(given.slots * context),
            "--threads": str(given.threads),
            "--threads-batch": str(given.threads),
            "--cache-type-k": "f32",
            "--cache-type-v": "f32",
        }
        return [str(libraries() / "llama-server"), *_words(flags), "--offline"]
    flags = {
        "--port": str(port),
        "--max-num-seqs": slots,
        "--max-model-len": str(context),
        "--served-model-name": "served",
    }
    if row != PLAIN:
        flags["--method"] = row
        flags |= {"--draft-model": given.draft_model} if given.draft_model != "none" else {}
    if row not in (PLAIN, AUTO, "sps"):
        flags.pop("--draft-model", None)
    return [sys.executable, "-m", "foretoken", "serve", given.model, *_words(flags)]


def _words(flags: dict[str, str]) -> list[str]:
    return [word for pair in flags.items() for word in pair]


@contextmanager
def serving(given: Namespace, row: str) -> Iterator[int]:
    """A row's server, ready; yields its port. Raises `Unserved` where it doesn't start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command(given, row, port), stdout=log, stderr=log, env=env)
        try:
            if not _ready(server, port):
                log.seek(0)
                raise Unserved(f"{row} doesn't start: {log.read()[-500:].decode(errors='replace')}")
            yield port
        finally:
            server.terminate()
            server.wait()


def _ready(server: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and server.poll() is None:
        try:
            if call(port, "GET", "/health")[0] == 200:
                return True
        except (OSError, HTTPException):
            pass
        time.sleep(0.1)
    return False


def call(port: int, verb: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    text = None if body is None else json.dumps(body)
    connection.request(verb, path, text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def prompts(given: Namespace) -> list[list[int]]:
    """The suite's prompts as token ids, tasks in turn, those that aren't too long."""
    found = []
    with serving(given, PLAIN) as port:
        for prompt in find_suite(given.suite, download=False).round_robin():
            turns = [{"role": "user", "content": prompt.turns[0]}]
            status, body = call(port, "POST", "/tokenize", {"messages": turns})
            if status != 200:
                raise Unserved(body.decode())
            ids = json.loads(body)["tokens"]
            found += [ids] if len(ids) <= given.longest else []
    return found


def lengths(given: Namespace) -> range:
    """How long an answer may be, in tokens."""
    return range(given.max_tokens // 2, given.max_tokens * 3 // 2 + 1)


def requests(given: Namespace, row: str, asked: list[list[int]], turn: int) -> list[Any]:
    """A round's bodies, one for each of these prompts; their lengths are the same for every row.
    A salt of its own keeps a prompt from going on from what another one left."""
    chance = Random(turn)
    body: dict[str, Any] = {
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return [
        body
        | ({"cache_prompt": False} if row == LLAMA else {"cache_salt": uuid4().hex})
        | {"prompt": ids, "max_tokens": chance.choice(lengths(given))}
        for ids in asked
    ]


def rounds(given: Namespace, asked: int, clients: int) -> list[dict[int, range]]:
    """For each generation of servers its rounds, each with the places of its prompts among those
    that are asked, of which the last ones warm a server up.

    Raises `Unserved` where they don't do for one round.
    """
    count = max(given.requests, given.each * clients)
    lasting = (asked - WARM) // count
    if lasting < 1:
        raise Unserved(
            f"a round of {clients} clients takes {count} prompts, and {WARM} come before it; "
            f"{given.suite} has {asked} of at most {given.longest} tokens. Name another --suite, "
            "or fewer --clients."
        )
    turns = range(given.rounds)
    return [
        {turn: range(i * count, (i + 1) * count) for i, turn in enumerate(turns[j : j + lasting])}
        for j in range(0, given.rounds, lasting)
    ]


@contextmanager
def warmed(given: Namespace, row: str, asked: list[list[int]]) -> Iterator[int]:
    """A row's server that has answered; yields its port."""
    with serving(given, row) as port:
        run(row, port, requests(given, row, asked[-WARM:], 0), 1, 0.0, given)
        yield port


def run(row: str, port: int, bodies: list[Any], clients: int, rate: float, given: Namespace) -> Any:
    """One run's summary: a closed loop where `rate` is 0."""
    until = None
    try:
        if rate:
            answers = asyncio.run(opened(port, bodies, rate))
        else:
            answers, until = asyncio.run(closed(port, bodies, clients))
    except ExceptionGroup as group:
        raise Unserved(f"{row}: {group.exceptions[0]}") from group
    return summary(answers, Wanted(given.first, given.per_token), until)


def loaded(
    given: Namespace, asked: list[list[int]], clients: int, rate: float, done: Kept
) -> Iterator[tuple[str, Any]]:
    """One load's runs in the order of rounds: the row, and its summary."""
    kind = "open" if rate else "closed"
    names = rows(given, kind, clients)
    for turns in rounds(given, len(asked), clients):
        with ExitStack() as stack:
            ports: dict[str, int] = {}
            for turn, places in turns.items():
                first = turn % len(names)
                for name in [*names[first:], *names[:first]]:
                    place = f"{kind} {clients} {turn} {name}"
                    found = done.get(place)
                    if found is None:
                        if name not in ports:
                            ports[name] = stack.enter_context(warmed(given, name, asked))
                        bodies = requests(given, name, [asked[i] for i in places], turn)
                        found = run(name, ports[name], bodies, clients, rate, given)
                        done.keep(place, found)
                    yield name, found


def measured(given: Namespace, done: Kept) -> dict[str, Any]:
    """All loads: kind -> clients -> row -> a summary for each round."""
    asked = prompts(given)
    results: dict[str, Any] = {"prompts": len(asked), "closed": {}, "open": {}}
    loads = [(kind, clients) for kind in ("closed", "open") for clients in given.clients]
    steps = given.rounds * sum(len(rows(given, *load)) for load in loads)
    with track("Serving", steps, True) as advance:
        for kind, clients in loads:
            rate = 0.0
            if kind == "open":
                plain = results["closed"][str(clients)][PLAIN]
                rate = given.share * statistics.median(r["requests_per_second"] for r in plain)
            cell: dict[str, Any] = {name: [] for name in rows(given, kind, clients)}
            for name, found in loaded(given, asked, clients, rate, done):
                cell[name].append(found)
                advance()
            results[kind][str(clients)] = cell
    return results


def kept(given: Namespace) -> Kept:
    """What has been measured of the same source and models with the same options."""
    names = ("draft_model", "method", "suite", "slots", "threads", "requests", "each", "max_tokens")
    names = (*names, "longest", "share", "first", "per_token")
    plan = {"model": Path(given.model).name} | {name: getattr(given, name) for name in names}
    files = [find(name) for name in (given.model, given.draft_model) if name != "none"]
    scripts = Path(__file__), Path(__file__).with_name("loads.py")
    plan |= {"code": code(*scripts), "files": [fingerprint(file) for file in files]}
    plan["answers"] = f"{lengths(given)[0]} to {lengths(given)[-1]}"
    return Kept(given.work, plan)


def ratio(cell: dict[str, Any], row: str, other: str) -> float:
    """Tokens a second of a row over another's, the median of the rounds."""
    pairs = zip(cell[row], cell[other], strict=True)
    return statistics.median(a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs)


def missed(results: dict[str, Any]) -> list[str]:
    """What is not as wanted."""
    bad = []
    for clients in map(str, COMPARED):
        cell = results["closed"].get(clients, {})
        if LLAMA not in cell:
            bad.append(f"{clients} clients: not measured beside llama.cpp")
            continue
        best = max(ratio(cell, row, LLAMA) for row in cell if row != LLAMA)
        if best < 1:
            bad.append(f"{clients} clients: {best:.2f} of llama.cpp's tokens a second")
    for kind in ("closed", "open"):
        for clients, cell in results[kind].items():
            found = ratio(cell, AUTO, PLAIN)
            if found < FLOOR:
                bad.append(f"{kind}, {clients} clients: auto writes {found:.3f} of plain")
            elif kind == "closed" and int(clients) <= FEW and found <= 1:
                bad.append(f"{kind}, {clients} clients: auto writes no more than plain")
    return bad


def show(results: dict[str, Any]) -> None:
    head = ["load", "tokens/s", "requests/s", "goodput", "TTFT p50", "p99", "ITL p50", "p99 ms"]
    lines = [head]
    for kind in ("closed", "open"):
        for clients, cell in results[kind].items():
            for row, runs in cell.items():
                lines.append([f"{kind}, {clients}, {row}", *_numbers(runs)])
    table(lines)


def _numbers(runs: list[Any]) -> list[str]:
    def middle(*path: str) -> float:
        values = []
        for found in runs:
            for name in path:
                found = found[name]
            values.append(found)
        return statistics.median(values)

    rates = [middle(name) for name in ("tokens_per_second", "requests_per_second", "goodput")]
    times = [middle(name, place) for name in ("ttft_ms", "itl_ms") for place in ("p50", "p99")]
    return [*(f"{rate:.2f}" for rate in rates), *(f"{ms:.0f}" for ms in times)]


def options_of(doc: str | None) -> Namespace:
    parser = options(doc)
    parser.add_argument("--method", help="beside plain and auto (default: sps, or suffix)")
    parser.add_argument("--suite", default="bundled", help="of prompts (default: bundled)")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--slots", type=int, default=16, help="sequences served at a time (16)")
    parser.add_argument("--threads", type=int, default=environment()["cores"], help="all")
    parser.add_argument("--requests", type=int, default=8, help="of a run, at least (8)")
    parser.add_argument("--each", type=int, default=2, help="and for each client (2)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer, on average (64)")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a prompt (512)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.8, help="of plain's rate, in open loops")
    parser.add_argument("--first", type=float, default=2.0, help="seconds of a good first token")
    parser.add_argument("--per-token", type=float, default=0.2, help="and of the others")
    work = cache_folder() / "serving.jsonl"
    parser.add_argument("--work", type=Path, default=work, help="what is done so far")
    parser.add_argument("--quick", action="store_true", help="one short round, to try it out")
    parser.add_argument("--check", action="store_true", help="fail unless all is as wanted")
    given = parser.parse_args()
    given.method = given.method or ("suffix" if given.draft_model == "none" else "sps")
    if given.quick:
        given.clients, given.rounds, given.requests, given.each = [1, 8], 1, 4, 1
        given.max_tokens = 16
    return given


def main() -> int:
    given = options_of(__doc__)
    done = kept(given)
    results = measured(given, done)
    show(results)
    bad = missed(results)
    print(f"\nNot as wanted: {'; '.join(bad) or 'nothing'}.")
    aside = ("out", "check", "model", "draft_model", "quick", "work")
    settings = {name: value for name, value in vars(given).items() if name not in aside}
    path = given.out / "serving.json"
    old = json.loads(path.read_text("utf-8"))["targets"] if path.is_file() else {}
    mine = {"environment": stamp(), "settings": settings, **results, "missed": bad}
    save("serving", given, {"targets": {**old, Path(given.model).name: mine}})
    done.forget()
    return 1 if bad and given.check else 0


if __name__ == "__main__":
    exit_with(main)
