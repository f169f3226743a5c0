"""A small run that tests interrupt, resume and cut into shards."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.measure import costs
from foretoken.bench.plan import Plan
from foretoken.bench.run.resume import Samples, write_plan
from foretoken.bench.run.runner import Runner
from foretoken.bench.run.session import measure
from foretoken.bench.suites.suite import Prompt, Suite
from foretoken.files import write_json

Pair = tuple[Path, Path]

TURNS = {"chat": ("Hello there.", "And then?"), "qa": ("Who wrote it, and when?",)}

PROMPTS = [
    Prompt(f"{task}-{i}", task, tuple(f"{text} {i}" for text in TURNS[task]))
    for i in range(3)
    for task in TURNS
]

RUN_SUITE = Suite("some", "0" * 64, tuple(PROMPTS))

TIMES = ("seconds", "decodings", "peak_memory_mib", "energy_j")


def run(
    target: str,
    draft: str,
    out: Path,
    shard: tuple[int, int] = (1, 1),
    held: Path | None = None,
) -> None:
    """A whole run, as the command does it; also in processes that are going to be killed, which
    don't end while the file `held` is there."""
    import torch

    torch.set_num_threads(1)
    write_plan(out, asked(shard))
    plan = Plan(
        model=target,
        name="tiny",
        max_tokens=8,
        batch_sizes=(1, 2),
        repeats=2,
        methods={"pld": {"method": "pld"}, "sps": {"method": "sps", "model": draft}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "_ARRAY_BYTES", 2**16)
        patch.setattr(costs, "WIDTHS", (1, 2))
        results = measure(Runner(plan), RUN_SUITE, RUN_SUITE.prompts, Samples(out), shard=shard)
    for _ in range(6000):  # no longer than a minute, should nobody kill it
        if held is None or not held.exists():
            break
        time.sleep(0.01)
    write_json(out / "results.json", results)


def asked(shard: tuple[int, int]) -> dict[str, Any]:
    text = None if shard == (1, 1) else f"{shard[0]}/{shard[1]}"
    return {"suite": RUN_SUITE.name, "repeats": 2, "shard": text}


def lines(folder: Path) -> list[dict[str, Any]]:
    """samples.jsonl without what the clock says."""
    found = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]
