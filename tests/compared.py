"""Folders of made-up results to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import synthetic
from foretoken.bench.measure import metrics
from foretoken.bench.record import Answer
from foretoken.files import write_file, write_json

PROMPTS = 24


def answers(
    method: str, seed: int, factor: float = 1.0, noise: float = 0.02, size: int = 1
) -> list[Answer]:
    """Prompts that differ twentyfold in cost and twofold in speedup; `noise` is the clock's."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(PROMPTS):
        share = 1.0 if method == "autoregressive" else 0.4 + 0.5 * (i * 7 % PROMPTS) / PROMPTS
        cost = 0.01 * 20 ** (i / PROMPTS) * share
        cost *= factor * float(np.exp(noise * rng.standard_normal()))
        seconds = {"prefill": 0.0, "draft": 0.0, "verify": cost, "other": 0.0}
        seconds |= {"ttft": 0.0, "total": cost}
        group = f"group-{i // size}"
        found.append(
            synthetic.answer(
                method,
                "qa",
                id=f"p{i}",
                seconds=seconds,
                sameness="identical",
                batch_size=size,
                group=group if size > 1 else "",
            )
        )
    return found


def measured_folder(path: Path, found: list[Answer], samples: bool = True, **suite: Any) -> Path:
    """A folder of results measured from the answers."""
    record: Any = synthetic.results()
    record["suite"] |= {"left_out": [], **suite}
    record["runs"] = metrics.runs(found, record["suite"]["left_out"], repeats=1)
    record["crossover"] = []
    write_json(path / "results.json", record)
    if samples:
        write_file(path / "samples.jsonl", "".join(a.line() + "\n" for a in found))
    return path


Make = Callable[..., Path]
