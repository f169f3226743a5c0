"""`foretoken methods`: the method table."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

COLUMNS = ("name", "drafter", "length", "tree", "verifier", "lossless", "trained", "paper")
_WRAPPED = ("length", "paper")
_WIDE = 110  # columns of a terminal with room for the papers


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the decoding methods: who drafts, how long, in what shape, and what is accepted.

    Example: [bold]foretoken methods --json[/bold]
    """
    rows = table()
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = COLUMNS if console.width >= _WIDE else COLUMNS[:-1]
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        style = "cyan" if column == "name" else ""
        shown.add_column(column, style=style, no_wrap=column not in _WRAPPED)
    for row in rows:
        shown.add_row(*[_cell(row[column]) for column in columns])
    console.print(shown)


def table() -> list[dict[str, Any]]:
    """The rows, as data."""
    from foretoken.methods import METHODS

    return [{column: getattr(row, column) for column in COLUMNS} for row in METHODS.values()]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
