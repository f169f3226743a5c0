"""Results in a terminal: tables, and an answer in which accepted drafts are coloured."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretoken.bench.record import Answer, Results
from foretoken.bench.report import rows, tables
from foretoken.bench.report.layout import Cell
from foretoken.bench.report.layout import Table as Layout

_ACCEPTED = "bold green"
_ASKED = 300  # letters of a prompt
_WIDE = 100  # columns of a terminal with room for the whole table


def table(results: Results, width: int = _WIDE) -> RenderableType:
    """A line for every run, a gap between settings, and what the averages stand on."""
    found = tables.numbers(results)
    shown: list[RenderableType] = [Text(rows.title(results), style="italic")]
    if found is not None:
        shown.append(lines(found, width))
    return Group(*shown, Text(rows.coverage(results), style="dim"))


def lines(found: Layout, width: int = _WIDE) -> RenderableType:
    """A table as data, with its groups' keys as columns."""
    places = [i for i, head in enumerate(found.heads) if width >= head.least]
    shown = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    shown.add_column(found.corner, no_wrap=True)
    for key in found.keys:
        shown.add_column(key, justify="right", no_wrap=True)
    for head in (found.heads[i] for i in places):
        text = head.short or "\n".join(filter(None, (head.over, head.text)))
        side: Literal["left", "right"] = "left" if head.left else "right"
        shown.add_column(text, justify=side, no_wrap=not head.left)
    for at, group in enumerate(found.groups):
        if at:
            shown.add_row()
        for row in group.rows:
            cells = [Text(row.cells[i].words, _style(row.cells[i])) for i in places]
            dim = "dim" if row.method == rows.BASELINE else ""
            shown.add_row(Text(row.words), *map(Text, group.key), *cells, style=dim)
    return shown


def _style(cell: Cell) -> str:
    return "bold" if cell.strong else ""


def answer(found: Answer) -> RenderableType:
    """One answer, token by token; of a long prompt the beginning."""
    drafted = sum(found.accepted)
    head = Text.assemble(
        (f"{found.method} at temperature {found.temperature:g}, {found.task}: ", "bold"),
        ("green", _ACCEPTED),
        f" was drafted and accepted ({drafted} of {len(found.accepted)} "
        f"tokens, {found.passes} passes of the target), the rest the target wrote itself",
    )
    body = Text()
    for piece, accepted in zip(found.pieces, found.accepted, strict=True):
        body.append(piece, style=_ACCEPTED if accepted else "")
    asked = found.prompt[:_ASKED] + "…" * (len(found.prompt) > _ASKED)
    return Group(head, Text(f"> {asked}", style="dim"), body)


def show(
    console: Console,
    results: list[Results],
    sample: Answer | None,
    published: Layout | None = None,
) -> None:
    """All tables, the targets side by side where there are several, then one answer."""
    for part in results:
        console.print()
        console.print(table(part, console.width))
    further = [tables.targets(results) if len(results) > 1 else None, *map(_worth, results)]
    for found in (*further, published):
        if found is not None:
            console.print()
            console.print(Text(found.title, style="italic"))
            console.print(lines(found, console.width))
            console.print(Text(found.note, style="dim"), end="\n" if found.note else "")
    if sample is not None:
        console.print()
        console.print(answer(sample))


def _worth(part: Results) -> Layout | None:
    """What approximate methods' texts are worth, where there are such methods."""
    found = tables.quality(part) if any(map(rows.approximate, part["runs"])) else None
    return found and replace(found, title=f"{found.title}: {rows.short_title(part)}")
