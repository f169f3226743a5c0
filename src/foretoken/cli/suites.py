"""`foretoken suites`: the prompts that a benchmark can be run on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from foretoken.cli import output

if TYPE_CHECKING:
    from foretoken.bench.suites.listing import Listed


def suites(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the suites of prompts: how many, which tasks, where from, and whether they are here.

    Any of them is a --suite of foretoken bench, and so is a file of yours. One that is not here is
    downloaded when it is asked for; the hub's are kept by the datasets library.

    Example: [bold]foretoken suites --json[/bold]
    """
    from foretoken.bench.suites.listing import listing

    rows = listing()
    if as_json:
        output.write_json([{**asdict(row), "path": row.path and str(row.path)} for row in rows])
    else:
        _show(rows)


def _show(rows: list[Listed]) -> None:
    console = output.console(width=100)
    heads, whole = ("suite", "prompts", "tasks", "from", "here"), ("suite", "prompts", "from")
    shown = output.table(*heads, right=("prompts",), whole=whole, key="suite")
    for row in rows:
        count = "" if row.prompts is None else f"{row.prompts:,}"
        shown.add_row(row.name, count, ", ".join(row.tasks) or "?", _home(row), _here(row))
    console.print(shown)


def _home(row: Listed) -> str:
    """The source, short: a dataset's id; of a file's address the repository that it is in."""
    if row.source is None:
        return "the package"
    if row.dataset:
        return row.source
    return "/".join(["github.com", *urlsplit(row.source).path.split("/")[1:3]])


def _here(row: Listed) -> str:
    if row.dataset:
        return "unknown"
    return "yes" if row.path is not None else "no"
