"""Numbers that pages print and records hold only the parts of: what a mark may name beside fields.

Each function takes a record and returns more fields, by name.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

Record = Mapping[str, Any]


def geometric(cells: Record) -> list[float]:
    """The geometric mean of cells' speedups and its 95 % interval, lowest first.

    The cells are independent, each with its own error.
    """
    logs = [math.log(cell["speedup"]) for cell in cells.values()]
    error = math.sqrt(sum(cell["error"] ** 2 for cell in cells.values())) / len(logs)
    mean = statistics.mean(logs)
    return [math.exp(mean - 1.96 * error), math.exp(mean), math.exp(mean + 1.96 * error)]


def regrets(record: Record, target: str) -> dict[str, float]:
    """auto's loss against the best fixed choice in each cell of a target; below 0 it is a gain."""
    cells = {tuple(name.split(", ")): cell for name, cell in record["model"].items()}
    return {
        f"{task}, batch {batch}, T {temperature}": cell["regret"]
        for (name, task, batch, temperature), cell in cells.items()
        if name == target
    }


def _auto(record: Record) -> dict[str, Any]:
    return {"mean": {part: _spread(geometric(record[part])) for part in ("clock", "wrong")}}


def _spread(ends: list[float]) -> list[float]:
    """[low, mean, high] as pages print it: the mean, then its interval."""
    low, mean, high = ends
    return [mean, low, high]


def _online(record: Record) -> dict[str, Any]:
    """Tokens a second over all blocks, and of both drafters as a share of plain decoding's."""
    blocks = record["blocks"]
    speed = {
        arm: sum(b[arm]["tokens"] for b in blocks) / sum(b[arm]["seconds"] for b in blocks)
        for arm in ("plain", "frozen", "learning")
    }
    return {"over_plain": {arm: each / speed["plain"] for arm, each in speed.items()}}


def _soak(record: Record) -> dict[str, Any]:
    """Each run by its name, with the range of its memory; the most that memory in use grew."""
    runs = {
        run["run"]: {**run, "range": [min(run["resident"]), max(run["resident"])]}
        for run in record["runs"]
    }
    return {
        "by_name": runs,
        "most grown": max(run["growth"]["in_use"] for run in record["runs"]),
    }


def _speeds(record: Record) -> dict[str, Any]:
    return {"fastest": max(each["ratio"] for each in record["speeds"].values())}


def _alignment(record: Record) -> dict[str, Any]:
    """What an arm gains on the one that it is compared with, by temperature, as a share."""
    gained = {**record["from_nothing"], **record["arms"]}
    return {
        "gain": {
            arm: {temperature: cell["ratio"] - 1 for temperature, cell in by.items()}
            for arm, by in gained.items()
        }
    }


DERIVED: dict[str, Callable[[Record], dict[str, Any]]] = {
    "alignment.json": _alignment,
    "auto.json": _auto,
    "online.json": _online,
    "soak.json": _soak,
    "speeds.json": _speeds,
}
