"""Results in a terminal: a table, and an answer in which accepted drafts are coloured."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretoken.bench import rows
from foretoken.bench.record import Answer, Results

_HEADS = {
    "tokens/s": "tokens\n/s", "95 % interval": "95 %\ninterval",
    "mean acceptance length": "mean\nlength", "accepted": "drafts\nkept", "draft ms": "draft\nms",
    "verify ms": "verify\nms", "other ms": "other\nms", "same text": "same\ntext",
}  # fmt: skip
_ACCEPTED = "bold green"
_WIDE = 86  # columns of a terminal with room for the whole table
_LESS = "accepted"  # is left out of a narrower one


def table(results: Results, width: int = _WIDE) -> RenderableType:
    """A line for every run, a gap between temperatures, and what the averages stand on."""
    places = [i for i, c in enumerate(rows.COLUMNS) if width >= _WIDE or c != _LESS]
    shown = Table(
        title=rows.title(results), title_justify="left", header_style="bold", padding=(0, 1, 0, 0),
        box=None,
    )  # fmt: skip
    for column in (rows.COLUMNS[i] for i in places):
        left = column in ("method", "same text")
        shown.add_column(_HEADS.get(column, column), justify="left" if left else "right")
    before = None
    for run, row in zip(results["runs"], rows.rows(results), strict=True):
        if before is not None and run["temperature"] != before:
            shown.add_row()
        before = run["temperature"]
        shown.add_row(*[row.cells[i] for i in places], style="dim" if row.baseline else "")
    return Group(shown, Text(rows.coverage(results), style="dim"))


def answer(found: Answer) -> RenderableType:
    """One answer, token by token."""
    drafted = sum(found.accepted)
    head = Text.assemble(
        (f"{found.method} at temperature {found.temperature:g}, {found.task}: ", "bold"),
        ("green", _ACCEPTED), f" was drafted and accepted ({drafted} of {len(found.accepted)} "
        f"tokens, {found.passes} passes of the target), the rest the target wrote itself",
    )  # fmt: skip
    body = Text()
    for piece, accepted in zip(found.pieces, found.accepted, strict=True):
        body.append(piece, style=_ACCEPTED if accepted else "")
    return Group(head, Text(f"> {found.prompt}", style="dim"), body)


def show(console: Console, results: list[Results], sample: Answer | None) -> None:
    """All tables, then one answer."""
    for part in results:
        console.print()
        console.print(table(part, console.width))
    if sample is not None:
        console.print()
        console.print(answer(sample))
