"""What a pass over several tokens costs, compared with reading the weights once.

The target, inflated to a large shape, is loaded once for each backend and its passes over 1 to 64
tokens are timed in turn with reading an array larger than any cache. A ratio of 1 is the limit that
the memory sets: weights (as the backend stores them) ÷ bandwidth. Batch 1, a context of 128 tokens,
float32, medians of the rounds. Then the peak memory of loading each, in a separate process.

Bandwidth is that of the faster of two readings on all threads: torch's sum, and a product of one
row with a matrix of the same size, which reads several streams. Example:

    python benchmarks/passes.py --check
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from shared import inflated, options, save, table

from foretoken import LLM
from foretoken.bench.measure.costs import WIDTHS, Meter
from foretoken.models.native.backends import choose
from foretoken.progress import track

LIMITS = {"float32": {1: 1.2, 8: 1.6, 16: 2.0}, "int8": {1: 2.0, 8: 2.5}}
FALL = 0.95  # a pass over more tokens takes at least so many times what one over fewer does
MEMORY, SPARE = 1.15, 150  # at most so many times weights, cache and so many MiB
ARRAY = (32_768, 4_096)  # 512 MiB


class Reading:
    """The machine's reading bandwidth."""

    def __init__(self) -> None:
        array = torch.ones(ARRAY)
        product, row = choose("auto", array.dtype, array.device)[1](array.clone(), None), array[:1]
        self._ways: dict[str, Callable[[], object]] = {
            "sum": array.sum,
            "product": lambda: product(row),
        }
        self._seconds: dict[str, list[float]] = {name: [] for name in self._ways}

    @torch.inference_mode()
    def round(self) -> None:
        for name, way in self._ways.items():
            began = perf_counter()
            way()
            self._seconds[name].append(perf_counter() - began)

    def gb_s(self) -> dict[str, float]:
        size = 4 * ARRAY[0] * ARRAY[1] / 1e9
        return {name: size / statistics.median(s[1:]) for name, s in self._seconds.items()}


def measure(given: Namespace) -> dict[str, Any]:
    """For each backend the passes' milliseconds and their ratios to reading the weights."""
    folder = inflated(given.model, given.shape) if given.shape != "own" else given.model
    memory = [_peak(folder, name) for name in given.backends] if given.memory else []
    llms = {
        name: LLM(folder, backend=name, dtype="float32", max_num_seqs=1, max_model_len=256)
        for name in given.backends
    }
    meters = {llm.model.backend: Meter(llm, {}) for llm in llms.values()}
    reading = Reading()
    with track("Passes", given.repeats + 1, True) as advance:
        for _ in range(given.repeats + 1):
            for meter in meters.values():
                meter.round()
                reading.round()
            advance()
    costs = {name: meter.costs() for name, meter in meters.items()}
    bandwidth = reading.gb_s()
    best = max(bandwidth.values())
    return {
        "shape": given.shape,
        "bandwidth_gb_s": bandwidth,
        "context": next(iter(costs.values()))["context"],
        "repeats": given.repeats,
        "automatic": next((llms[n].model.backend for n in llms if n == "auto"), None),
        "backends": {name: _ratios(cost["target"], best) for name, cost in costs.items()},
        "memory": {part.pop("backend"): part for part in memory},
    }


def _ratios(target: Any, bandwidth: float) -> dict[str, Any]:
    reading = target["weight_bytes"] / bandwidth / 1e6  # ms
    ms = {int(width): value for width, value in target["passes"][0]["ms"].items()}
    return {
        "weight_bytes": target["weight_bytes"],
        "reading_ms": reading,
        "ms": ms,
        "ratios": {width: value / reading for width, value in ms.items()},
    }


def _peak(folder: Path, backend: str) -> dict[str, Any]:
    """MiB; `ratio` is to weights, cache and `SPARE`."""
    script = Path(__file__).with_name("peak.py")
    command = [sys.executable, str(script), str(folder), backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    allowed = results["weights_mib"] + results["cache_mib"] + SPARE
    return {**results, "ratio": results["peak_mib"] / allowed}


def missed(results: dict[str, Any]) -> list[str]:
    """What is above its limit, in words, and passes that cost less than smaller ones. Only `auto`'s
    choice and int8 have limits on time."""
    kinds = {"int8": "int8", results["automatic"]: "float32"}
    slow = [
        f"{name}: pass({width}) is {part['ratios'][width]:.2f} times reading, limit {limit}"
        for name, part in results["backends"].items()
        for width, limit in LIMITS.get(kinds.get(name, ""), {}).items()
        if part["ratios"][width] > limit
    ]
    falling = [
        f"{name}: pass({more}) takes {part['ms'][more] / part['ms'][fewer]:.2f} times pass({fewer})"
        for name, part in results["backends"].items()
        for fewer, more in pairwise(sorted(part["ms"]))
        if part["ms"][more] < FALL * part["ms"][fewer]
    ]
    large = [
        f"{name}: loading takes {part['ratio']:.2f} times what it may hold, limit {MEMORY}"
        for name, part in results["memory"].items()
        if part["ratio"] > MEMORY
    ]
    return slow + falling + large


def show(results: dict[str, Any]) -> None:
    readings = ", ".join(f"{name} {gb:.1f}" for name, gb in results["bandwidth_gb_s"].items())
    print(f"{results['shape']}, reading GB/s: {readings}; ms of a pass (times reading)\n")
    rows = [["backend", "weights MB", "reading ms", *(f"pass({w})" for w in WIDTHS)]]
    for name, part in results["backends"].items():
        rows.append([name, f"{part['weight_bytes'] / 1e6:.0f}", f"{part['reading_ms']:.2f}"])
        rows[-1] += [f"{part['ms'][w]:.3g} ({part['ratios'][w]:.2f})" for w in WIDTHS]
    table(rows)
    if results["memory"]:
        print()
        rows = [["backend", "weights MiB", "cache MiB", "peak MiB", "ratio"]]
        for name, part in results["memory"].items():
            sizes = [f"{part[key]:.0f}" for key in ("weights_mib", "cache_mib", "peak_mib")]
            rows.append([name, *sizes, f"{part['ratio']:.2f}"])
        table(rows)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--shape", default="1.1b", help="to inflate to, or 'own' (default: 1.1b)")
    parser.add_argument(
        "--backends", nargs="+", default=("auto", "int8"), help="default: auto int8"
    )
    parser.add_argument("--repeats", type=int, default=7, help="at least 5 (default: 7)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="time only")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    given = parser.parse_args()
    results = measure(given)
    show(results)
    failures = missed(results)
    print("\n" + "\n".join(failures or ["every limit is kept"]))
    save("passes", given, {**results, "limits": LIMITS, "met": not failures})
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
