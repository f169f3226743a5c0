"""What the linear layers of a pass cost by format, beside reading their weights and the arithmetic.

Random weights in the shapes of a model, all layers in turn, so that each is read from memory. In
every round the numbers of rows take their turns, between readings. The limit of a product is the
larger of two times: that of reading its bytes at the measured bandwidth, and that of its
multiplications at the rate that 16 rows reach with a matrix in the second-level cache, scaling and
quantising included. Bandwidth is that of the faster of two readings: torch's sum, and a product of
one row, which reads several streams. Example:

    python benchmarks/linear.py --formats Q4_K Q8_0 --check
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from passes import Reading
from shared import options, save, table

from foretoken.bench.measure.environment import environment
from foretoken.models.native.backends import MODULES, blocks, pages
from foretoken.models.native.backends.blocks import ALL, VALUES, Blocks
from foretoken.models.native.layer import Linear
from foretoken.progress import track

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
SHAPES = {
    "qwen2.5-1.5b": (28, 1536, 256, 8960, 151_936),
    "smollm2-135m": (30, 576, 192, 1536, 49_152),
}
"""Layers, width, width of keys, feed-forward, vocabulary."""
FLOATS = {"float32": "panels", "float16": "half", "int8": "int8"}
"""Formats that aren't blocks -> their backends."""
BARS = {
    "vnni": {
        "Q4_K": {1: 1.3, 5: 1.65, 8: 1.85, 16: 2.6},
        "Q8_0": {1: 1.15, 5: 1.3, 8: 1.4, 16: 1.85},
    },
    "avx2": {"Q4_K": {1: 1.4, 8: 3.0}},
}
"""At most so many times reading the weights, by what the CPU has and the number of rows."""
RATES = {"vnni": 400, "avx2": 180}
"""At least so many billions of multiplications and additions a second from the cache, in Q4_K."""
FALLS = 0.95
"""More rows may take at least this share of the time of fewer."""
_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q8_0": 34, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
_BYTES["Q6_0"] = 26
_SCALES = {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_CACHED = (512, 1536)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--shape", default="qwen2.5-1.5b", choices=SHAPES, help=", ".join(SHAPES))
    parser.add_argument("--formats", nargs="+", default=["Q4_K", "Q8_0", "float16", "int8"])
    parser.add_argument("--repeats", type=int, default=7, help="rounds, at least 5 (7)")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    given = parser.parse_args()
    has = "vnni" if {"avx512_vnni", "avx_vnni"} & {*environment()["cpu_features"]} else "avx2"
    found = {name: measured(name, given) for name in given.formats}
    show(found)
    failures = [*missed(found, has)]
    print("\n" + "\n".join(failures or ["every bar is kept"]))
    given.model = given.draft_model = ""
    bars = {"instructions": has, "bars": BARS[has], "rate": RATES[has], "met": not failures}
    save(
        "linear", given, {"shape": given.shape, "repeats": given.repeats, **bars, "formats": found}
    )
    return 1 if failures and given.check else 0


@torch.inference_mode()
def measured(name: str, given: Namespace) -> dict[str, Any]:
    """Milliseconds by the number of rows, and the two limits."""
    layers = [(product(name, *shape), shape) for shape in shapes(given.shape)]
    size = sum(layer.nbytes for layer, _ in layers)
    weights = sum(outputs * inputs for _, (outputs, inputs) in layers)
    inputs = {width: torch.randn(max(ROWS), width) for _, (_, width) in layers}
    reading, cached = Reading(), product(name, *_CACHED)
    few = torch.randn(16, _CACHED[1])
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    rates: list[float] = []

    def run(rows: int) -> None:
        for layer, (_, width) in layers:
            layer(inputs[width][:rows])

    with track(f"Layers in {name}", given.repeats + 1, True) as advance:
        for _ in range(given.repeats + 1):
            reading.round()
            for rows in ROWS:
                times[rows].append(seconds(lambda rows=rows: run(rows)))  # type: ignore[misc]
            rates.append(min(seconds(lambda: cached(few)) for _ in range(20)))
            advance()
    bandwidth = max(reading.gb_s().values())
    rate = 16 * _CACHED[0] * _CACHED[1] / median(rates[1:]) / 1e9
    ms = {rows: 1000 * median(times[rows][1:]) for rows in ROWS}
    read = size / bandwidth / 1e6
    limits = {rows: max(read, rows * weights / rate / 1e6) for rows in ROWS}
    return {
        "weight_bytes": size,
        "weights": weights,
        "bandwidth_gb_s": bandwidth,
        "rate_gmacs": rate,
        "reading_ms": read,
        "ms": ms,
        "times_reading": {rows: ms[rows] / read for rows in ROWS},
        "times_limit": {rows: ms[rows] / limits[rows] for rows in ROWS},
    }


def seconds(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def shapes(name: str) -> Iterator[tuple[int, int]]:
    """[outputs, inputs] of each product of a pass."""
    layers, width, keys, wide, vocabulary = SHAPES[name]
    for _ in range(layers):
        yield from ((width + 2 * keys, width), (width, width), (2 * wide, width), (width, wide))
    yield vocabulary, width


def product(name: str, outputs: int, inputs: int) -> Any:
    """A layer of random weights."""
    if name in FLOATS:
        made: Linear = MODULES[FLOATS[name]].make(torch.randn(outputs, inputs).half().float(), None)
        return made
    return blocks.product([random_blocks(name, outputs, inputs)], None)


def random_blocks(kind: str, outputs: int, inputs: int) -> Blocks:
    """Any bytes, with scales of a size."""
    count, size = -(-inputs // VALUES[kind]), _BYTES[kind]
    data = pages.passing((outputs, count, size), torch.uint8)
    data.view(-1).random_(256)
    for at in _SCALES.get(kind, (0,)):
        data[..., at : at + 2] = torch.tensor([0.01]).half().view(torch.uint8)
    return Blocks(data.view(outputs, -1), kind, inputs)


def missed(found: dict[str, Any], has: str) -> Iterator[str]:
    for name, part in found.items():
        for rows, bar in BARS[has].get(name, {}).items():
            if part["times_reading"][rows] > bar:
                took = part["times_reading"][rows]
                yield f"{name}: {rows} rows take {took:.2f} times reading, bar {bar}"
        for fewer, more in pairwise(ROWS):
            if part["ms"][more] < FALLS * part["ms"][fewer]:
                yield f"{name}: {more} rows take less than {fewer}"
        if name == "Q4_K" and part["rate_gmacs"] < RATES[has]:
            yield f"{name}: {part['rate_gmacs']:.0f} G a second from the cache, bar {RATES[has]}"


def show(found: dict[str, Any]) -> None:
    for name, part in found.items():
        read = f"{part['reading_ms']:.1f} ms to read at {part['bandwidth_gb_s']:.1f} GB/s"
        print(f"\n{name}: {part['weight_bytes'] / 1e6:.0f} MB, {read}")
        print(f"from the cache {part['rate_gmacs']:.0f} G multiplications a second")
        rows = [["rows", *map(str, ROWS)], ["ms", *(f"{part['ms'][n]:.1f}" for n in ROWS)]]
        for key in ("times_reading", "times_limit"):
            rows.append([key.replace("_", " "), *(f"{part[key][n]:.2f}" for n in ROWS)])
        table(rows)


assert set(_BYTES) == set(ALL)

if __name__ == "__main__":
    sys.exit(main())
