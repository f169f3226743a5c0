"""Whether an LLM that serves thousands of requests, many of which go wrong, stays as it was.

Each run is a process of its own with one LLM: `mixed` tries eight methods in turn, the others serve
one method of the table each, all that need no weights or bundled ones. Eight clients send requests
at random; some are cancelled, left half read, out of time, out of range, or have a logits
processor, a criterion or a tokenizer that raises. After each wave of 25 the process is looked at.
Where a method has a bound on its memory, the bound is set so low that it is reached within the
first 500 requests. Of the waves after these, the second half may not take more than the first by
over 1 %, compared by the least that each took:

- in use: what GNU's allocator has handed out, exact to a few KB; Python's objects, counted.
- resident: the memory of the process, with the allocator told to hand back what is free
  (MALLOC_TRIM_THRESHOLD_). Left to itself it keeps up to 60 MB for the next pass, more or less from
  wave to wave: resident memory is then what is in use and a number that comes and goes.

Nor may there be more threads or descriptors, other texts for the same prompt, a request that ends
otherwise than it should, or one that stays. Milliseconds a step, medians, may triple, since others
use the machine as well; without them they stay the same. Example:

    python benchmarks/soak.py --check
    python benchmarks/soak.py --methods online suffix --requests 3000

`mixed`, `auto` and `online` serve --requests, the others a third as many, but at least 1,000. The
record is written after each run; --resume goes on with what it lacks.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from clients import Clients, Tokenizer
from shared import bundled, options, save, stamp, table

from foretoken import LLM, METHODS, ForetokenError, SamplingParams
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.files import read_json
from foretoken.lookup.datastore import build as build_datastore
from foretoken.methods import Need
from foretoken.models.load import load_tokenizer

CLIENTS, WAVE, WARM, LEAST = 8, 25, 500, 1000
GROWTH, SLOWER = 0.01, 3.0

PARTS = ("sps", "suffix", "llma", "sam", "token_recycling", "lookahead", "swift", "jacobi")
COSTS = CostModel({1: 1.0, 64: 1.1}, {p: DraftCost(call=0.01) for p in PARTS}, fixed=True)
"""Of a machine on which drafting always pays, so that all parts of `mixed` have their turns."""

LONG = ("mixed", "auto", "online")

SETTINGS: dict[str, dict[str, Any]] = {
    "mixed": {"method": f"auto:{','.join(PARTS)}", "costs": COSTS, "exploration": 0.9}
    | {"max_cached_tokens": 2000, "max_opt_iter": 100},
    "auto": {"max_cached_tokens": 2000},
    "suffix": {"max_cached_tokens": 2000},
    "llma": {"max_cached_tokens": 2000},
    "swift": {"max_opt_iter": 100},
    "sequoia": {"learn_every": 20},
    "tli": {"max_cached_words": 300},
    "slem": {"max_cached_words": 300},
    "online": {"every": 8, "versions": 4, "buffer_mib": 4, "window": 512},
}
"""Run -> the settings by which its memory is full soon."""

BOUNDS = {
    "mixed": "its parts'",
    "auto": "its parts'; for each part the rates are counters",
    "suffix": "max_cached_tokens",
    "llma": "max_cached_tokens",
    "pld": "max_cached_tokens, 0 by default",
    "token_recycling": "num_candidates",
    "swift": "max_opt_iter",
    "sequoia": "none needed: counters",
    "rest": "none needed: the datastore is mapped",
    "tli": "max_cached_words",
    "slem": "max_cached_words",
    "online": "versions, buffer_mib, window",
}
"""Run -> what bounds what it keeps across requests; the others keep nothing."""

WEIGHTS = {"eagle2": "mini-eagle", "dflash_tree": "mini-dflash"} | {
    name: f"mini-{name}" for name in ("medusa", "hydra", "eagle", "eagle3", "mtp", "dflash")
}
"""Drafter -> the bundled weights for it."""

RUNS = [*BOUNDS] + [
    name
    for name, row in METHODS.items()
    if name not in BOUNDS and (not row.trained or row.drafter in WEIGHTS)
]
"""What is served, that which keeps something first."""

Row = dict[str, Any]


class _Allocated(ctypes.Structure):
    """What GNU's `mallinfo2` returns: bytes by their use, over all threads."""

    _fields_ = [
        *((f"_{place}", ctypes.c_size_t) for place in range(4)),
        ("mapped", ctypes.c_size_t),
        *((f"_{place}", ctypes.c_size_t) for place in range(5, 7)),
        ("used", ctypes.c_size_t),
        *((f"_{place}", ctypes.c_size_t) for place in range(8, 10)),
    ]


def in_use() -> float:
    """MiB that the allocator has handed out."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Allocated
    now = mallinfo()
    return float(now.used + now.mapped) / 2**20


def resident() -> float:
    """MiB of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def look(llm: LLM) -> Row:
    """The process as it stands, with nothing under way, a step of learning neither."""
    learner = getattr(llm.engine.drafter, "learner", None)
    if learner is not None:
        learner.settle()
    gc.collect()
    return {
        "resident": resident(),
        "in_use": in_use(),
        "objects": sys.getallocatedblocks(),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "ms": sum(llm.stats.ms_per_step.values()),
    }


def configured(name: str, given: Namespace, stack: ExitStack) -> dict[str, Any]:
    """The configuration of a run, with what has to be made for it."""
    config = {"method": name, **SETTINGS.get(name, {})}
    row = METHODS.get(name)
    if name in LONG or (row is not None and Need.DRAFT_MODEL in row.needs):
        config["model"] = given.draft_model
    if row is not None and row.trained:
        config["model"] = WEIGHTS[row.drafter]
    if row is not None and Need.DATASTORE in row.needs:
        config["datastore"] = folder = stack.enter_context(tempfile.TemporaryDirectory())
        with LLM(given.model) as llm:
            texts = [llm.tokenizer(prompt.turns[0])["input_ids"] for prompt in bundled()]
            build_datastore(folder, {"vocab_size": llm.model.vocab_size}, texts)
    return config


def serve(name: str, requests: int, given: Namespace) -> Row:
    """One run: the waves, and what is left when the LLM is closed."""
    with ExitStack() as stack:
        config = configured(name, given, stack)
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        tokenizer = Tokenizer(load_tokenizer(given.model))
        llm = LLM(given.model, speculative_config=config, tokenizer=tokenizer, max_num_seqs=CLIENTS)
        clients, probe = Clients(llm, given.seed), SamplingParams(temperature=0, max_tokens=24)
        texts, waves, chosen = set[tuple[int, ...]](), list[Row](), Counter[str]()
        began = perf_counter()
        for first in range(0, requests, WAVE):
            llm.reset_stats()
            list(pool.map(clients.one, range(first, min(first + WAVE, requests))))
            texts.add(tuple(llm.generate(clients.texts[0], probe).pop().token_ids))
            waves.append(look(llm))
            chosen.update(llm.stats.chosen)
            if (first + WAVE) % WARM == 0:
                print(f"  {name}: {first + WAVE} of {requests}", file=sys.stderr, flush=True)
        seconds = perf_counter() - began
        busy = llm.engine.busy or llm.engine.target.free != CLIENTS
        llm.close()
        threads = threading.active_count()
    return {
        "run": name,
        "requests": requests,
        "method": config["method"],
        "settings": {
            k: v for k, v in config.items() if k in SETTINGS.get(name, {}) and k != "costs"
        },
        "bounded_by": BOUNDS.get(name, "none needed: nothing is kept"),
        "seconds": round(seconds, 1),
        "outcomes": dict(sorted(clients.outcomes.items())),
        "wrong": clients.wrong[:5],
        "busy": busy,
        "texts_of_the_probe": len(texts),
        "chosen": dict(chosen.most_common(len(PARTS))),
        "threads_after_close": threads,
        **judged(waves),
    }


def judged(waves: list[Row]) -> Row:
    """What the process took in the first and in the second half of the waves after the first 500
    requests, and by how much it grew from one to the other. resident: after every 100 requests."""
    warm = waves[WARM // WAVE :]
    start, end = least(warm[: len(warm) // 2]), least(warm[len(warm) // 2 :])
    return {
        "first": least(waves[:1]),
        "start": start,
        "end": end,
        "growth": {key: end[key] / start[key] - 1 for key in ("resident", "in_use", "objects")},
        "resident": [round(wave["resident"], 1) for wave in waves[3::4]],
    }


def least(waves: list[Row]) -> Row:
    """The least of each number, but the median of milliseconds."""
    found = {key: round(min(wave[key] for wave in waves), 3) for key in waves[0]}
    return found | {"ms": round(median(wave["ms"] for wave in waves), 3)}


def failures(row: Row) -> list[str]:
    """What a run did that it may not."""
    start, end, grown = row["start"], row["end"], row["growth"]
    found = {
        f"memory in use grew by {grown['in_use']:.1%}": grown["in_use"] > GROWTH,
        f"resident memory grew by {grown['resident']:.1%}": grown["resident"] > GROWTH,
        f"objects grew by {grown['objects']:.1%}": grown["objects"] > GROWTH,
        f"a step takes {end['ms'] / start['ms']:.1f} times as long": end["ms"]
        > SLOWER * start["ms"],
        f"{end['threads'] - start['threads']:.0f} threads more": end["threads"] > start["threads"],
        f"{end['files'] - start['files']:.0f} files more": end["files"] > start["files"],
        "requests or slots were left": row["busy"],
        f"unexpected: {row['wrong'][:1]}": bool(row["wrong"]),
        "the same prompt had different texts": row["texts_of_the_probe"] != 1,
    }
    return [what for what, wrong in found.items() if wrong]


def isolated(name: str, given: Namespace) -> Row:
    """The run in a process of its own."""
    requests = given.requests if name in LONG else max(LEAST, given.requests // 3 // WAVE * WAVE)
    asked = [sys.executable, str(Path(__file__)), "--serve", name, "--requests", str(requests)]
    asked += ["--model", given.model, "--draft-model", given.draft_model]
    asked += ["--seed", str(given.seed)]
    env = os.environ | {"MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        raise ForetokenError(f"The run {name!r} ended with status {done.returncode}.")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def show(rows: list[Row]) -> None:
    head = ["run", "requests", "s", "in use", "then", "resident", "then"]
    lines = [[*head, "objects", "threads", "files", "ms/step", ""]]
    for row in rows:
        start, end = row["start"], row["end"]
        memory = (f"{of[key]:.1f}" for key in ("in_use", "resident") for of in (start, end))
        counts = (f"{start[key]:.0f} {end[key]:.0f}" for key in ("threads", "files"))
        lines.append(
            [
                row["run"],
                str(row["requests"]),
                f"{row['seconds']:.0f}",
                *memory,
                f"{row['growth']['objects']:+.2%}",
                *counts,
                f"{start['ms']:.2f} {end['ms']:.2f}",
                "; ".join(failures(row)) or "ok",
            ]
        )
    table(lines)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="+", choices=RUNS, default=RUNS, metavar="METHOD")
    parser.add_argument("--requests", type=int, default=3000, help="of the long runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="fail where a run does")
    parser.add_argument("--resume", action="store_true", help="keep the runs in the record")
    parser.add_argument("--serve", choices=RUNS, help="one run, in this process")
    given = parser.parse_args()
    if given.requests < LEAST or given.requests % WAVE:
        parser.error(
            f"--requests is {given.requests}; memory is judged after the first {WARM}, so give a "
            f"multiple of {WAVE} that is at least {LEAST}"
        )
    if given.serve:
        print(json.dumps(serve(given.serve, given.requests, given)))
        return 0
    record = given.out / "soak.json"
    rows = read_json(record, "a record of the soak")["runs"] if given.resume else []
    for name in given.methods:
        if name in {row["run"] for row in rows}:
            continue
        rows.append({**isolated(name, given), "environment": stamp()})
        print(f"{name}: {'; '.join(failures(rows[-1])) or 'ok'}", file=sys.stderr, flush=True)
        met = not any(map(failures, rows))
        save("soak", given, {"seed": given.seed, "growth": GROWTH, "met": met, "runs": rows})
    show(rows)
    return 1 if given.check and any(map(failures, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
