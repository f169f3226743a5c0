"""The record, real.json, made from the answers of a working folder, and what is asked of it.

    benchmark                 "real"
    limit                     prompts of a stage where it was only tried out, else null
    environment               the machine
    models                    file -> {"bytes", "sha256"}
    suite                     the official questions: name, sha256; ours: file, sha256
    hours                     {"allowed", "spent", "left"}: of measuring; estimated what is left
    bandwidth_gb_s            of every piece, as it read memory between the prompts
    left_out                  [{"cell", "rows", "hours"}]: what the hours did not allow
    peers_left_out            engine -> why it could not be started
    choices                   target -> what the screen decided: {"rows", "best", "beside"}
    trained                   the drafters that were trained, {"drafters", "missing"}: see
                              real_table/trained.py
    memory                    [{"target", "method", "tokens", "peak_mib", "backend"}]
    memory_environment        the machine, commit and date of these; null where they weren't noted
    cells                     a cell each: see `figures.cell`
    missed                    what was asked for and not found, in words

A cell: stage ("screen", "grid", "whole", "precision", "trained"), target, precision, backend,
parameters, batch_size, temperature, memory ("cold", "warm"), complete, rounds, speed_rounds (the
numbers of those that have every row, other engines' too: of these are all tokens_per_second and
ms_per_step), dates (the earliest first), machines and commits (of every piece in which its rounds
were served), max_tokens, prompts, turns, groups (served together), prompt_tokens, written (how much
of max_tokens answers have), skipped, looping (prompts that plain decoding answers with a loop),
stalled ([{"round", "group", "turn", "rows"}]: turns that no speed counts, and the rows that stalled
in them, each with the seconds over; see stalls.py), timed (how many answers of all rows, in a batch
groups' turns, were looked at for that), not_run, costs, not_judged ([{"rows", "round", "timed_ms",
"plain_ms"}]: rows that have no ideal, as the passes timed in a round aren't those that plain
decoding had there), rows, best_trained (of the stage "trained": {"method", "over"}, the fastest row
of a trained drafter over each row of none) and peers.

A row: engine "foretoken", method, config, rounds (how many have it), prompts, tokens,
target_passes, tokens_per_second, over_plain {"ratio", "ci95"} (in all rounds that have it),
mean_acceptance_length, draft_acceptance_rate, ms_per_step, ideal, of_ideal, identity {"prompts",
"identical", "near_tie", "different"} or null, peak_memory_mib, kv_cache_mib, failed, errors,
without_looping, whole {"tokens_per_second", "over_plain"} (a batch's until its last answer ends),
margins, and by_task: task -> the same numbers, where prompts are served one by one.

A peers' row (ours stand there too, by the same definitions): engine, method, kind, options,
version, rounds (in which it was asked), prompts, tokens, failed, errors, same_as_own_plain of
answers (null where that engine's plain row isn't in the cell), and decoding and whole, each
{"tokens_per_second", "over_own_plain", "over_foretoken_plain"}, and by_task: decoding's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretoken.bench.measure.environment import environment
from foretoken.bench.record import BASELINE
from foretoken.zoo.fetch import sha256
from real_table import figures, trained
from real_table.cells import OF_TRAINED, Cell
from real_table.folder import read
from real_table.lineup import OTHER_SIZE, PAIR, SMALL, TARGETS
from real_table.progress import SETTLED, Whole
from real_table.prompts import OWN
from real_table.serve import COSTS, read_lines

MEMORY = "memory.json"
LIMITS = {(PAIR, BASELINE): 4.5e9, (PAIR, "sps"): 5.6e9, (SMALL, BASELINE): 0.75e9}
"""Bytes that one conversation of 2,000 tokens may take."""
BEST, OF_IDEAL, LENGTH = 1.8, 0.95, 1.5
"""Wanted: the best method's speed over plain on the pair in float16; a method's speed over its
ideal, of those that write more than so many tokens a pass."""


def hashes(models: Path, targets: Mapping[str, Any] | tuple[str, ...]) -> dict[str, str]:
    """The sha256 of each target's and draft model's file; bundled models have a version instead."""
    names = dict.fromkeys(name for target in targets for name in TARGETS[target].files)
    return {name: sha256(models / name) for name in names if name.endswith(".gguf")}


def made(whole: Whole, models: Path, found: Mapping[str, str], left: float) -> dict[str, Any]:
    """The whole record. left: seconds that what is left is expected to take."""
    memory = _json(whole.work / MEMORY, {"rows": []})
    record: dict[str, Any] = {
        "benchmark": "real",
        "environment": environment(),
        "models": {
            name: {"bytes": (models / name).stat().st_size, "sha256": sha}
            for name, sha in found.items()
        },
        "suite": {
            "name": whole.suite.name,
            "sha256": whole.suite.sha256,
            "own": OWN.name,
            "own_sha256": sha256(OWN),
        },
        "hours": {
            "allowed": whole.hours,
            "spent": whole.spent() / 3600,
            "left": left / 3600,
        },
        "limit": whole.limit,
        "bandwidth_gb_s": [
            line["bandwidth_gb_s"] for path in _folders(whole) for line in _last(path)
        ],
        "left_out": [
            {"cell": o.cell, "rows": list(o.rows), "hours": o.hours} for o in whole.left_out()
        ],
        "peers_left_out": _peers_left_out(whole),
        "choices": whole.settled()["choices"] if (whole.work / SETTLED).is_file() else {},
        OF_TRAINED: {k: v for k, v in whole.trained().items() if k != "cells"},
        "memory": memory["rows"],
        "memory_environment": memory.get("environment"),
        "cells": list(_cells(whole)),
    }
    return {**record, "missed": list(missed(record))}


def _folders(whole: Whole) -> list[Path]:
    names = [cell.name for cell in whole.cells()]
    return [whole.work / name for name in names if (whole.work / name / "cell.json").is_file()]


def _last(folder: Path) -> list[dict[str, Any]]:
    """The last measured costs of each piece."""
    return list({line["piece"]: line for line in read_lines(folder / COSTS)}.values())


def _peers_left_out(whole: Whole) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in _folders(whole):
        found |= _json(path / "left_out.json", {})
    return found


def _json(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else otherwise


def _cells(whole: Whole) -> Iterator[dict[str, Any]]:
    """Each kind of cell with its complete rounds, or with what there is of the first."""
    kinds: dict[str, list[Cell]] = {}
    for cell in whole.cells():
        if (whole.work / cell.name / "cell.json").is_file():
            kinds.setdefault(cell.kind, []).append(cell)
    for cells in kinds.values():
        done = [cell for cell in cells if whole.done(cell)] or cells[:1]
        rounds = [read(whole.work / cell.name) for cell in done]
        if all(one.answers for one in rounds):
            yield figures.cell(rounds)


def missed(record: Mapping[str, Any]) -> Iterator[str]:
    """What is asked for and not found, in words."""
    for cell in record["cells"]:
        yield from (f"{title(cell)}: {text}" for text in _of_cell(cell))
    yield from _best(record["cells"])
    for one in record["left_out"]:
        yield f"{one['cell']} is left out: {', '.join(one['rows'])}"
    yield from trained.missed(record)
    for name, reason in record["peers_left_out"].items():
        yield f"{name} is left out: {reason}"
    if not record["memory"]:
        yield "what a conversation takes of memory was not measured"
    for row in record["memory"]:
        limit = LIMITS.get((row["target"], row["method"]))
        if limit is not None and row["peak_mib"] * 2**20 > limit:
            peak = row["peak_mib"] * 2**20 / 1e9
            yield (
                f"{row['target']}, {row['method']}: {peak:.2f} GB at the peak, and {limit / 1e9:g} "
                "are allowed"
            )
    if record["hours"]["left"]:
        yield f"{record['hours']['left']:.1f} hours of measuring are left"


def title(cell: Mapping[str, Any]) -> str:
    peers = dict.fromkeys(r["engine"] for r in cell["peers"] if r["engine"] != "foretoken")
    return ", ".join(
        [
            cell["stage"],
            cell["target"],
            cell["precision"],
            f"batch {cell['batch_size']}",
            f"temperature {cell['temperature']:g}",
            cell["memory"],
            *([f"beside {' and '.join(peers)}"] if peers else []),
        ]
    )


def _of_cell(cell: Mapping[str, Any]) -> Iterator[str]:
    for name, reason in cell["not_run"].items():
        yield f"{name} can't be run: {reason}"
    for row in cell["rows"]:
        name, same = row["method"], row["identity"]
        if row["failed"]:
            yield f"{name} failed {row['failed']} prompts ({row['errors'][0]})"
        if cell["temperature"] == 0 and (same is None or same["different"]):
            yield f"{name} writes other tokens than plain decoding for {same} prompts"
        if _judged(row, cell) and row["of_ideal"] is not None and row["of_ideal"] < OF_IDEAL:
            yield f"{name} has {row['of_ideal']:.2f} of its ideal, and {OF_IDEAL} are wanted"
    asked = [row["method"] for row in cell["rows"] if _judged(row, cell)]
    for one in cell["not_judged"]:
        if rows := [name for name in asked if name in one["rows"]]:
            yield (
                f"{', '.join(rows)}: not judged by the ideal, as a pass was timed at "
                f"{one['timed_ms']:.2f} ms in round {one['round']}, where plain decoding's took "
                f"{one['plain_ms']:.2f}"
            )
    for row in cell["peers"]:
        if row["failed"]:
            yield f"{row['engine']}, {row['method']} failed {row['failed']}: {row['errors'][0]}"


def _judged(row: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """Whether a share of its ideal is asked of a row."""
    length = row["mean_acceptance_length"]
    alone = row["method"] != BASELINE and cell["batch_size"] == 1
    return alone and length is not None and length > LENGTH


def _best(cells: list[dict[str, Any]]) -> Iterator[str]:
    """The pair's best single method, cold, greedy, one sequence."""
    for cell in cells:
        where = cell["stage"], cell["target"], cell["precision"]
        if where != ("precision", PAIR, "float16"):
            continue
        single = [r for r in cell["rows"] if not {"+", "|"} & {*r["method"]}]
        ratios = {r["method"]: r["over_plain"]["ratio"] for r in single if r["over_plain"]}
        best = max((name for name in ratios if name != "auto"), key=lambda name: ratios[name])
        if ratios[best] < BEST:
            told = f"{PAIR} in float16: the best, {best},"
            yield f"{told} is {ratios[best]:.2f} times plain, not {BEST}"
        return
    yield f"{PAIR} in float16 was not measured, and {BEST} times plain is wanted there"


assert OTHER_SIZE in TARGETS
