"""`foretoken methods`: the method table, what installed packages add, and the acceptance rules."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import StrEnum
from typing import Annotated, Any

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError

COLUMNS = ("name", "drafter", "length", "tree", "verifier", "lossless", "trained", "paper")
INSTALLED_COLUMNS = ("name", "package", "drafter")
VERIFY_COLUMNS = ("name", "lossless", "trees", "sampling", "kinds", "source")
SURVEY_COLUMNS = ("name", "ours", "claim", "test", "note")
_LEFT_OUT = ("drafter", "trained", "paper", "source", "test")  # where they would squeeze the others
_WRAPPED = ("length", "tree", "paper", "kinds", "source", "ours", "note")
_WIDE = 130  # columns of a terminal with room for everything


class Axis(StrEnum):
    """What `foretoken methods` lists."""

    METHODS = "methods"
    VERIFY = "verify"


def methods(
    axis: Annotated[
        Axis | None,
        typer.Option(
            help="List whole methods (the default), or the acceptance rules they choose from."
        ),
    ] = None,
    survey: Annotated[
        bool, typer.Option(help="List what two surveys of the field name, and what is here of it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the decoding methods: who drafts, how long, in what shape, and what is accepted.

    Below them: the drafters that installed packages offer as methods, each with its package. In
    JSON these are rows with a "package"; what is known only once they are built is null.

    With [bold]--axis verify[/bold]: the acceptance rules, any of which a method takes as
    "verifier". Lossless rules keep the target's distribution; approximate ones trade it for speed.

    With [bold]--survey[/bold]: the systems of Xia et al. 2024 and the taxonomy of Zhang et al.
    2024, each with our method or command, what is claimed and the test that proves it.

    Example: [bold]foretoken methods --json[/bold]
    """
    if survey:
        if axis is not None:
            raise ForetokenError("--survey has no axes; leave out --axis or --survey.")
        _show_survey(as_json)
        return
    whole = axis is not Axis.VERIFY
    rows, added = (table(), installed()) if whole else (rules(), [])
    if as_json:
        empty = dict.fromkeys(COLUMNS)
        output.write_json([*rows, *(empty | row for row in added)])
        return
    _show(rows, COLUMNS if whole else VERIFY_COLUMNS)
    if added:
        output.write("\nFrom installed packages, each with the exact rule for its drafts:")
        _show(added, INSTALLED_COLUMNS)


def _show_survey(as_json: bool) -> None:
    from foretoken.cli.surveys import ENTRIES

    rows = [entry._asdict() for entry in ENTRIES]
    if as_json:
        output.write_json(rows)
        return
    for title in dict.fromkeys(entry.survey for entry in ENTRIES):
        output.write(f"{title}:\n")
        _show([row for row in rows if row["survey"] == title], SURVEY_COLUMNS)
        output.write("")


def table() -> list[dict[str, Any]]:
    """The rows of the method table, as data."""
    from foretoken.methods import METHODS

    return [{column: getattr(row, column) for column in COLUMNS} for row in METHODS.values()]


def installed() -> list[dict[str, Any]]:
    """The drafters of installed packages, as data. A name that can't be used is noted on standard
    error, with the path that can."""
    from foretoken.registry import installed_drafters

    drafters = installed_drafters()
    names = [drafter.name for drafter in drafters]
    usable = []
    for name, path, package in drafters:
        if wrong := _why_unusable(name, names):
            output.note(f'{package}: its drafter {name!r} {wrong}; use it as "{path}".')
        else:
            usable.append({"name": name, "package": package, "drafter": path})
    return usable


def _why_unusable(name: str, installed: Seq[str]) -> str:
    if installed.count(name) > 1:
        return "has the name of another package's"
    return "" if is_free(name) else "has a name of foretoken's own, or none that a method can have"


def is_free(name: str) -> bool:
    """Whether a drafter of another package can be used by this name."""
    from foretoken.config import AUTO, ONLINE, parse, row_of
    from foretoken.registry import drafter_names

    signs = {",", ":"} & {*name} or parse(name).combiner
    return not signs and row_of(name) is None and name not in (AUTO, ONLINE, *drafter_names())


def rules() -> list[dict[str, Any]]:
    """Every acceptance rule, the lossless ones first: trees and sampling tell whether it takes more
    than chains and serves temperatures above 0, kinds which nodes it may judge."""
    from foretoken.registry import verifier_class, verifier_names

    classes = [(name, verifier_class(name)) for name in verifier_names()]
    classes.sort(key=lambda pair: not pair[1].exact)
    return [
        {
            "name": name,
            "lossless": rule.exact,
            "trees": rule.trees,
            "sampling": rule.sampling,
            "kinds": [kind.name.lower() for kind in sorted(rule.kinds)],
            "source": rule.source,
        }
        for name, rule in classes
    ]


def _show(rows: Seq[dict[str, Any]], columns: Seq[str]) -> None:
    """Print a table; a narrow terminal gets fewer columns, and a line that names the others."""
    console = output.console()
    left_out = [c for c in columns if c in _LEFT_OUT and console.width < _WIDE]
    columns = [column for column in columns if column not in left_out]
    whole = [column for column in columns if column not in _WRAPPED]
    shown = output.table(*columns, whole=whole, key="name")
    for row in rows:
        shown.add_row(*[_cell(row[column]) for column in columns])
    console.print(shown)
    if left_out:
        console.print(f"A wider terminal or --json also shows: {', '.join(left_out)}.", style="dim")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        from foretoken.tree import Kind

        is_all = len(value) == len(Kind) - 1  # padding is no choice
        return "all" if is_all else ", ".join(value).replace("_", " ")
    return str(value)
