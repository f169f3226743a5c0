"""Numbers that pages print and records hold only the parts of: what a mark may name beside fields.

Each function takes a record and returns more fields, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Record = Mapping[str, Any]


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


def _auto(record: Record) -> dict[str, Any]:
    """The cell in which `auto` is farthest from the best fixed choice."""
    return {"worst": min(record["cells"].values(), key=lambda cell: cell["of_best"])}


def _growing(record: Record) -> dict[str, Any]:
    """Of each model the milliseconds that growing adds to a token, over all of its tokens: what
    passes that take no pages differ by is noise."""
    return {
        "ms a token": [
            model["growing_steps"] * model["extra_ms_of_a_growing_step"] / model["tokens"]
            for model in record["models"]
        ]
    }


def _copying(record: Record) -> dict[str, Any]:
    return {"datastore": {"million tokens": record["datastore_tokens"] / 1e6}}


def _real(record: Record) -> dict[str, Any]:
    """The sizes of the files."""
    return {"mb": {file: own["bytes"] / 1e6 for file, own in record["models"].items()}}


DERIVED: dict[str, Callable[[Record], dict[str, Any]]] = {
    "alignment.json": _alignment,
    "alignment-smollm2.json": _alignment,
    "auto.json": _auto,
    "growing.json": _growing,
    "copying.json": _copying,
    "online.json": _online,
    "online-smollm2.json": _online,
    "real.json": _real,
    "soak.json": _soak,
    "speeds.json": _speeds,
}
