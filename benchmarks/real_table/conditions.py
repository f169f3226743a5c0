"""The pages' tables of what changes a speed on real models: batches, memory, tasks; what the rows
are, what a conversation takes, and which files were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from page_markdown import NONE, code, markdown

from foretoken.bench.measure.ideal import crossing
from foretoken.bench.record import BASELINE
from real_table.cells import COLD, STORED, WARM
from real_table.lineup import FETCHED
from real_table.words import (
    LOOPS,
    Record,
    machine,
    name,
    over,
    paragraphs,
    speed,
    title,
    told,
    two,
    without_loops,
)

NOT_MEASURED = "*Not measured yet.*"
SHOWN = 3
"""How many of our methods beside `auto` the table by task shows."""


def _grid(record: Record, target: str, **asked: object) -> list[Record]:
    """A target's cells of the grid that are whole, with these settings."""
    wanted = {"stage": "grid", "target": target, "precision": STORED, "complete": True, **asked}
    return [c for c in record["cells"] if all(c[key] == value for key, value in wanted.items())]


def _targets(record: Record) -> list[str]:
    return list(dict.fromkeys(c["target"] for c in record["cells"] if c["stage"] == "grid"))


def _rows(cell: Record) -> dict[str, Record]:
    """Those that have a speed, by method."""
    return {row["method"]: row for row in cell["rows"] if row["over_plain"]}


def _fastest_first(cell: Record) -> list[str]:
    """Methods but plain decoding."""
    rows = _rows(cell)
    ratios = {m: row["over_plain"]["ratio"] for m, row in rows.items() if m != BASELINE}
    return sorted(ratios, key=lambda method: -ratios[method])


def batches(record: Record) -> str:
    """Methods by the number of sequences: speed over plain decoding of as many, and from how many
    on they are slower than that."""
    return paragraphs(*_batches(record)) or NOT_MEASURED


def _batches(record: Record) -> Iterator[str]:
    for target in _targets(record):
        for temperature in (0.0, 1.0):
            cells = _grid(record, target, temperature=temperature, memory=COLD)
            sizes = {cell["batch_size"]: cell for cell in cells}
            if max(sizes, default=1) > 1:
                heading = f"**{title(target)}**, temperature {temperature:g}"
                yield paragraphs(heading, *_by_size({size: sizes[size] for size in sorted(sizes)}))


def _by_size(cells: dict[int, Record]) -> list[str]:
    rows = {size: _rows(cell) for size, cell in cells.items()}
    widest = max(cells.values(), key=lambda cell: len(cell["rows"]))
    several = dict.fromkeys(m for size in cells if size > 1 for m in rows[size])
    methods = [method for method in _fastest_first(widest) if method in several]
    plain = [speed(own[BASELINE]["tokens_per_second"]) for own in rows.values()]
    lines = [["plain, tokens/s", *plain, ""]]
    for method in methods:
        ratios = [over(own.get(method), method, "over_plain") for own in rows.values()]
        lines.append([code(method), *ratios, _slower_from(method, rows)])
    table = markdown(["sequences", *map(str, cells), "slower from"], lines)
    said = told(((str(size), cell) for size, cell in cells.items()), "Batches of ")
    straight = _straight(methods, rows) if any(c["looping"] for c in cells.values()) else ""
    return [table, f"{said} {straight}".rstrip()]


def _straight(methods: Sequence[str], rows: dict[int, dict[str, Record]]) -> str:
    """The speeds over the prompts whose answers don't loop, in the order of the table."""
    found = {m: [without_loops(own[m]) for own in rows.values() if m in own] for m in methods}
    told = "; ".join(f"{code(method)} {', '.join(ratios)}" for method, ratios in found.items())
    return f"Over the prompts alone whose plain answers don't loop: {told}."


def _slower_from(method: str, rows: dict[int, dict[str, Record]]) -> str:
    """The number of sequences from which a method is slower than plain decoding."""
    ratios = {s: own[method]["over_plain"]["ratio"] for s, own in rows.items() if method in own}
    least = crossing(ratios)
    return f"over {max(ratios)}" if least is None else f"{least:.2g}"


def warm(record: Record) -> str:
    """Methods that remember: empty before each prompt, and with what earlier prompts left."""
    found = (text for target in _targets(record) for text in _warm(record, target))
    return paragraphs(*found) or NOT_MEASURED


def _warm(record: Record, target: str) -> Iterator[str]:
    alone = {"batch_size": 1, "temperature": 0.0}
    cold, kept = (_grid(record, target, memory=m, **alone) for m in (COLD, WARM))
    if not (cold and kept):
        return
    before, after = _rows(cold[0]), _rows(kept[0])
    lines = [
        [code(method), *_length_and_speed(before.get(method)), *_length_and_speed(after[method])]
        for method in _fastest_first(kept[0])
    ]
    head = [*("cold: tokens a pass", *_OVER), *("warm: tokens a pass", *_OVER)]
    said = told((("Cold", cold[0]), ("Warm", kept[0])))
    yield f"**{title(target)}**"
    yield markdown(["", *head], lines)
    yield f"{said} {LOOPS}"


_OVER = ("over plain", "without loops")


def _length_and_speed(row: Record | None) -> list[str]:
    if row is None:
        return [NONE] * 3
    ratio = over(row, row["method"], "over_plain")
    return [two(row["mean_acceptance_length"]), ratio, without_loops(row)]


def tasks(record: Record) -> str:
    """The fastest methods by task: speed over plain decoding."""
    found = (text for target in _targets(record) for text in _tasks(record, target))
    return paragraphs(*found) or NOT_MEASURED


def _tasks(record: Record, target: str) -> Iterator[str]:
    for cell in _grid(record, target, memory=COLD, batch_size=1, temperature=0.0):
        rows, order = _rows(cell), _fastest_first(cell)
        best = [method for method in order if method != "auto"][:SHOWN]
        methods = [method for method in order if method in best or method == "auto"]
        plain = rows[BASELINE]["by_task"]
        lines = [
            [
                task.replace("_", " "),
                str(each["prompts"]),
                speed(each["tokens_per_second"]),
                *(over(rows[m]["by_task"].get(task), m, "over_plain") for m in methods),
            ]
            for task, each in plain.items()
        ]
        yield f"**{title(target)}**"
        yield markdown(["task", "prompts", "plain, tokens/s", *map(code, methods)], lines)
        yield told([("Greedy", cell)])


def options(record: Record) -> str:
    """Each row whose name is not all of its options, as `-sc`; DRAFT is the draft model's file."""
    cells = [c for c in record["cells"] if c["stage"] in ("grid", "screen", "precision")]
    cells.sort(key=lambda cell: cell["precision"] != STORED)  # a name's own options first
    found: dict[str, Record] = {}
    for row in (row for cell in cells for row in cell["rows"]):
        if row["config"].keys() - {"method"}:
            found.setdefault(row["method"], row["config"])
    lines = [[code(m), code(json.dumps({**own, "model": "DRAFT"}))] for m, own in found.items()]
    return markdown(["row", "`-sc`"], lines, 2)


def memory(record: Record) -> str:
    """The most that one conversation takes, by model, method and weights."""
    rows: Sequence[Record] = record["memory"]
    peaks = {(r["target"], r["method"], r["backend"]): r["peak_mib"] for r in rows}
    backends = dict.fromkeys(row["backend"] for row in rows)
    lines = [
        [name(target), "plain" if method == BASELINE else code(method)]
        + [_mib(peaks.get((target, method, backend))) for backend in backends]
        for target, method in dict.fromkeys((row["target"], row["method"]) for row in rows)
    ]
    table = markdown(["target", "", *(f"{code(b)}, MiB" for b in backends)], lines, 2)
    lengths = " or ".join(dict.fromkeys(f"{row['tokens']:,}" for row in rows))
    environment = record.get("memory_environment")
    there = f"; {machine({'machines': [environment]})}" if environment else ""
    return paragraphs(table, f"One conversation of {lengths} tokens, prompt and answer{there}.")


def _mib(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def files(record: Record) -> str:
    """The files that were measured, and what fetches them."""
    lines = [
        [code(file), code(FETCHED[file]), f"{own['bytes']:,}", code(own["sha256"])]
        for file, own in record["models"].items()
    ]
    return markdown(["file in `--models`", "`foretoken zoo fetch`", "bytes", "sha256"], lines, 2)
