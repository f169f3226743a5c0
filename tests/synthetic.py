"""A made-up record with everything in it, for tests that need every section of a report.

The target's name is "synthetic".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench.record import Answer, Results
from foretoken.files import write_file, write_json

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
METHODS = {
    "autoregressive": 1.0,
    "pld": 1.34,
    "sps": 1.52,
    "lookahead": 1.11,
    "token_recycling": 1.44,
    "medusa_typical": 1.71,
}
HOSTILE = 'Say <script>alert("no")</script> & `nothing` | more'


def measured(speed: float, plain: float, prompts: int, drafting: bool, **given: Any) -> Any:
    """The numbers of a run, and of each of its tasks."""
    length = 0.6 + speed if drafting else 1.0
    step = 1000 * length / (plain * speed)
    wide = 0.09 * speed
    return {
        "tokens_per_second": plain * speed,
        "speedup": speed,
        "speedup_ci95": [speed - wide, speed + 1.2 * wide] if drafting else [1.0, 1.0],
        "mean_acceptance_length": length,
        "draft_acceptance_rate": 0.42 * speed if drafting else None,
        "acceptance_rate_per_position": [0.82 * 0.86**i * speed / 1.8 for i in range(5)]
        if drafting
        else [],
        "ms_per_step": {
            "draft": 0.18 * step * drafting,
            "verify": (0.75 if drafting else 0.96) * step,
            "other": (0.07 if drafting else 0.04) * step,
        },
        "target_passes": int(60 * prompts / length),
        "tokens": 60 * prompts,
        "latency_ms": {
            "ttft_p50": 31.2,
            "ttft_p99": 74.9,
            "per_token_p50": 1000 / (plain * speed),
            "per_token_p99": 1400 / (plain * speed),
        },
        "peak_memory_mib": 412.0 + 25 * drafting,
        "identical_to_autoregressive": {
            "prompts": prompts,
            "identical": prompts - drafting,
            "near_tie": int(drafting),
            "different": 0,
        },
        "spec_bench": {
            "mean_accepted_tokens": length,
            "tokens_per_second": 0.93 * plain * speed,
            "speedup": 1 + 0.94 * (speed - 1),
        },
        "scores": {"accuracy": 0.25, "bleu": 11.3, "rouge_l": 0.21},
        "log_likelihood_per_token": None if drafting else -1.382,
        "stray_rate": None,
        "energy_j_per_token": None,
        "nodes_per_step": {"0": 3, "4": 30},
        "ideal": {"from_pass_costs": 1.08 * speed, "from_bytes": 1.31 * speed}
        if drafting
        else None,
        **given,
    }


def run(method: str, temperature: float, batch_size: int, number: int) -> Any:
    """One run, slower when hot and in large batches."""
    drafting = method != "autoregressive"
    plain = 212.0 * batch_size**0.7 / (1 + 0.02 * temperature)
    base = METHODS[method] - 0.16 * temperature * drafting
    speed = 1 + (base - 1) * (1.25 - 0.25 * batch_size) if drafting else 1.0
    given: dict[str, Any] = {}
    if method == "medusa_typical":
        given = {
            "stray_rate": 0.061,
            "log_likelihood_per_token": -1.519,
            "identical_to_autoregressive": None,
            "scores": {"accuracy": 0.22, "bleu": 10.4, "rouge_l": 0.20},
        }
    elif method in ("sps", "token_recycling") and temperature:
        given = {"identical_to_autoregressive": None}
    by_task = {
        task: measured(speed * (1 + 0.07 * (i - 2) * drafting), plain, number // 6, drafting)
        for i, task in enumerate(TASKS)
    }
    return {
        "method": method,
        "temperature": temperature,
        "batch_size": batch_size,
        "repeats": 3,
        "prompts": number,
        "failed": int(method == "lookahead" and batch_size == 4),
        **measured(speed, plain, number, drafting, **given),
        "by_task": by_task,
    }


def results(
    dtype: str = "float32",
    temperatures: Sequence[float] = (0.0, 0.5, 1.0),
    sizes: Sequence[int] = (1, 4, 8),
    **target: Any,
) -> Results:
    """Six methods at some temperatures and batch sizes."""
    record: Results = {
        "schema": 1,
        "environment": {
            "cpu": "Made-up CPU @ 2.10GHz",
            "cores": 2,
            "memory_gib": 15.6,
            "gpu": None,
            "os": "Debian GNU/Linux 13 (trixie), x86_64",
            "python": "3.13.5",
            "torch": "2.9.0",
            "transformers": "5.12.0",
            "foretoken": "0.1.0",
            "git_commit": "0123abc",
            "threads": 2,
            "date": "2026-01-31T12:00:00+00:00",
        },
        "target": {
            "name": "synthetic",
            "parameters": 9_400_000,
            "dtype": dtype,
            "backend": "packed",
            **target,
        },
        "suite": {
            "name": "spec-bench",
            "sha256": "4b6d33e7" * 8,
            "prompts": 30,
            "turns": 35,
            "max_tokens": 128,
            "distinct_4_threshold": 0.8,
            "left_out": ["qa-7", "rag-2"],
            "skipped": ["sum-12"],
            "history": "autoregressive",
            "warm": False,
        },
        "costs": None,
        "not_run": {"eagle": "it needs a trained head; none was given"},
        "runs": [
            run(method, temperature, size, 28)
            for size in sizes
            for temperature in temperatures
            for method in METHODS
        ],
        "crossover": [
            {
                "method": method,
                "temperature": temperature,
                "batch_size": end,
                "up_to": 8,
                "predicted": False,
            }
            for temperature in temperatures
            for method, end in zip(list(METHODS)[1:], (5.2, 5.0, 4.6, 5.1, None), strict=True)
        ],
    }  # type: ignore[typeddict-item]
    return record


def answer(method: str, task: str, temperature: float = 0.0, **given: Any) -> Answer:
    """A dozen tokens, two in three of them drafted unless the method is plain decoding."""
    pieces = [" The", " house", " <b>", " is", " old", ",", " and", " | `", " so", "\n", "am", "."]
    accepted = [method != "autoregressive" and i % 3 < 2 for i in range(len(pieces))]
    known: dict[str, Any] = {
        "target": "synthetic",
        "method": method,
        "temperature": temperature,
        "id": f"{task}-1",
        "task": task,
        "turn": 0,
        "prompt": HOSTILE,
        "text": "".join(pieces),
        "finish_reason": "length",
        "token_ids": list(range(len(pieces))),
        "pieces": pieces,
        "accepted": accepted,
        "passes": accepted.count(False),
        "drafted": 9,
        "drafted_at": [4, 4, 1],
        "accepted_at": [4, 4, 0],
        "peak_memory_mib": 10.0,
        "seconds": {
            "prefill": 0.01,
            "draft": 0.01,
            "verify": 0.07,
            "other": 0.01,
            "ttft": 0.03,
            "total": 0.12,
        },
    }
    return Answer(**{**known, **given})


def samples(temperatures: Sequence[float] = (0.0, 1.0)) -> list[Answer]:
    """An answer of every method to every task, and one that failed."""
    failure = {"token_ids": [], "pieces": [], "accepted": [], "error": "the server hung up <now>"}
    return [
        *(
            answer(method, task, temperature)
            for task in TASKS
            for method in METHODS
            for temperature in temperatures
        ),
        answer("lookahead", "qa", id="qa-9", batch_size=4, **failure),
    ]


def write(folder: Path, first: Results, *others: Results) -> Path:
    """A folder as `foretoken bench` writes it."""
    write_json(folder / "results.json", first)
    for part in others:
        write_json(folder / f"results-{part['target']['dtype']}.json", part)
    write_file(folder / "samples.jsonl", "".join(a.line() + "\n" for a in samples()))
    return folder
