"""Results in a terminal: tables, and an answer in which accepted drafts are coloured."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretoken.bench.record import BASELINE, Answer, Results
from foretoken.bench.report import selection, tables, wording
from foretoken.bench.report.layout import Cell
from foretoken.bench.report.layout import Table as Layout

_ACCEPTED = "bold green"
_PROMPT_LETTERS = 300  # letters of a prompt
_FULL_WIDTH = 100  # columns of a terminal with room for the whole table


def table(results: Results, width: int = _FULL_WIDTH) -> RenderableType:
    """A line for every run, a gap between settings, and how many prompts the averages are of."""
    numbers = tables.numbers(results)
    shown: list[RenderableType] = [Text(wording.title(results), style="italic")]
    if numbers is not None:
        shown.append(lines(numbers, width))
    return Group(*shown, Text(wording.coverage(results), style="dim"))


def lines(layout: Layout, width: int = _FULL_WIDTH) -> RenderableType:
    """A table as data, with its groups' keys as columns."""
    places = [i for i, head in enumerate(layout.heads) if width >= head.least]
    shown = Table(header_style="bold", padding=(0, 1, 0, 0), box=None)
    shown.add_column(layout.corner, no_wrap=True)
    for key in layout.keys:
        shown.add_column(key, justify="right", no_wrap=True)
    for head in (layout.heads[i] for i in places):
        text = head.short or "\n".join(filter(None, (head.over, head.text)))
        side: Literal["left", "right"] = "left" if head.left else "right"
        shown.add_column(text, justify=side, no_wrap=not head.left, overflow="fold")
    for at, group in enumerate(layout.groups):
        if at:
            shown.add_row()
        for row in group.rows:
            cells = [Text(row.cells[i].full_text, _style(row.cells[i])) for i in places]
            dim = "dim" if row.method == BASELINE else ""
            shown.add_row(Text(row.full_text), *map(Text, group.key), *cells, style=dim)
    return shown


def _style(cell: Cell) -> str:
    return "bold" if cell.strong else ""


def in_colour(console: Console) -> bool:
    """Whether colours are seen there, which a pipe, a file and NO_COLOR don't show."""
    return console.color_system is not None and not console.no_color


def mark(coloured: bool) -> Text:
    """What stands for tokens that were drafted and accepted, in words."""
    return Text("green", _ACCEPTED) if coloured else Text("what stands between ⟦ and ⟧")


def written(pieces: Seq[str], accepted: Seq[bool], coloured: bool) -> Text:
    """An answer's tokens, with those marked that were drafted and accepted."""
    if not coloured:
        return Text(wording.bracketed(pieces, accepted))
    text = Text()
    for piece, drafted in zip(pieces, accepted, strict=True):
        text.append(piece, style=_ACCEPTED if drafted else "")
    return text


def answer(given: Answer, coloured: bool) -> RenderableType:
    """One answer, token by token; of a long prompt the beginning."""
    drafted = sum(given.accepted)
    head = Text.assemble(
        (f"{given.method} at temperature {given.temperature:g}, {given.task}: ", "bold"),
        mark(coloured),
        f" was drafted and accepted ({drafted} of {len(given.accepted)} "
        f"tokens, {given.passes} passes of the target), the target wrote the rest itself",
    )
    prompt = given.prompt[:_PROMPT_LETTERS] + "…" * (len(given.prompt) > _PROMPT_LETTERS)
    body = written(given.pieces, given.accepted, coloured)
    return Group(head, Text(f"> {prompt}", style="dim"), body)


def show(
    console: Console,
    results: list[Results],
    sample: Answer | None,
    published: Layout | None = None,
) -> None:
    """All tables, those of the target that tells most first, and what the methods are; the targets
    side by side where there are several; then one answer."""
    results = selection.telling_first(results)
    for part in results:
        console.print()
        console.print(table(part, console.width))
    if legend := wording.legend(results):
        console.print(Text(legend, style="dim"))
    further = [tables.targets(results) if len(results) > 1 else None, *map(_quality, results)]
    for layout in (*further, published):
        if layout is not None:
            console.print()
            console.print(Text(layout.title, style="italic"))
            console.print(lines(layout, console.width))
            console.print(Text(layout.note, style="dim"), end="\n" if layout.note else "")
    if sample is not None:
        console.print()
        console.print(answer(sample, in_colour(console)))


def _quality(part: Results) -> Layout | None:
    """The quality of approximate methods' texts, where there are such methods."""
    quality = tables.quality(part) if any(map(selection.approximate, part["runs"])) else None
    return quality and replace(quality, title=f"{quality.title}: {wording.short_title(part)}")
