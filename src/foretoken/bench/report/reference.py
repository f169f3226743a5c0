"""Published speedups (`published/*.json`, each with its source) next to the measured ones.

Nothing in those files was measured here: other hardware, another target, another engine. What can
be compared is which methods gain on which tasks, and by Spec-Bench's own definitions only.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import cache
from pathlib import Path
from typing import Any

from foretoken.bench.record import BASELINE, Results, Run
from foretoken.bench.report import selection
from foretoken.bench.report.layout import NONE, Cell, Group, Head, Row, Table
from foretoken.bench.report.wording import machine, number, times
from foretoken.files import read_json

_FOLDER = Path(__file__).parent / "published"


@cache
def sources() -> list[dict[str, Any]]:
    """The published tables as they stand in the files."""
    return [read_json(path, "a published table") for path in sorted(_FOLDER.glob("*.json"))]


def _published(method: str, temperature: float, tasks: Seq[str]) -> Iterator[Row]:
    for source in sources():
        for table in source["tables"]:
            if table["temperature"] != temperature:
                continue
            for row in table["rows"]:
                if method in row["methods"]:
                    named = dict(zip(source["tasks"], row["speedup"], strict=True))
                    cells = [
                        f"published: {table['name']}",
                        *(times(named.get(task)) for task in tasks),
                        times(row["overall"]),
                        number(row.get("mean_accepted_tokens")),
                    ]
                    where = f"{table['dtype']}, {_machine(table)}"
                    name = f"{row['name']}, {table['target']}"
                    yield Row(name, tuple(map(Cell, cells)), detail=where)


def _machine(table: dict[str, Any]) -> str:
    name: str = table["hardware"].split(",")[0]
    return name.removeprefix("NVIDIA ")


def _measured(part: Results, run: Run, tasks: Seq[str]) -> Row:
    scores, by_task = run["spec_bench"], run["by_task"]
    cells = [
        "measured here",
        *(times(by_task[t]["spec_bench"]["speedup"]) if t in by_task else NONE for t in tasks),
        times(scores["speedup"]),
        number(scores["mean_accepted_tokens"]),
    ]
    name = f"{run['method']}, {part['target']['name']}"
    where = f"{part['target']['dtype']}, {machine(part)}"
    figures = tuple(Cell(text, strong=text != NONE) for text in cells)
    return Row(name, figures, run["method"], where)


def published(results: Seq[Results]) -> Table | None:
    """The table of methods that are measured and published: our rows first, then the published."""
    tasks = list(dict.fromkeys(task for source in sources() for task in source["tasks"]))
    heads = [
        Head("from", left=True),
        *(Head(task, "speedup", least=150) for task in tasks),
        Head("overall", "speedup"),
        Head("#mean accepted tokens", short="#mean\naccepted"),
    ]
    groups = []
    for temperature in sorted(
        {s.temperature for part in results for s in selection.smallest_batch(part)}
    ):
        for method in selection.method_order(results):
            published_rows = tuple(_published(method, temperature, tasks))
            measured_rows = [
                _measured(part, run, tasks)
                for part in results
                for setting in selection.smallest_batch(part)
                for run in selection.runs_at(part, setting)
                if (run["method"], run["temperature"]) == (method, temperature)
            ]
            if measured_rows and published_rows and method != BASELINE:
                title = f"{method}, temperature {temperature:g}"
                groups.append(
                    Group(title, (f"{temperature:g}",), (*measured_rows, *published_rows))
                )
    if not groups:
        return None
    note = " ".join(f"{source['title']}: {source['source']}." for source in sources())
    note = f"Speedups by Spec-Bench's own definitions. {_not_here(results)}{note}"
    title = "Published next to measured"
    return Table(title, "method and target", ("T",), tuple(heads), tuple(groups), note)


def _not_here(results: Seq[Results]) -> str:
    """The published methods that were not measured."""
    measured = set(selection.method_order(results))
    published_as = {
        row["name"]: row["methods"]
        for source in sources()
        for table in source["tables"]
        for row in table["rows"]
    }
    names = sorted(name for name, ours in published_as.items() if not measured & set(ours))
    return f"Published and not measured here: {', '.join(names)}. " if names else ""
