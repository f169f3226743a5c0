"""`foretoken report`: the pages of a measurement, or what changed between two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.bench.report.compare import Comparison


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER [FOLDER]", help="Results; two of them are compared."),
    ],
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Show published speedups next to the measured ones."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results or the comparison as JSON instead.")
    ] = False,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression", help="Exit with 1 where the second is worse beyond noise."
        ),
    ] = False,
) -> None:
    """Make report.md and report.html of a measurement, or show what changed between two.

    A run that goes on or was killed is reported as it stands.
    Two folders are compared method by method, paired over shared prompts where both have samples.
    Worse is: a lower speedup, slower plain decoding on the same machine, other text than before, or
    more prompts that failed.

    Example: [bold]foretoken report before after --fail-on-regression[/bold]
    """
    if reference and as_json:
        raise ForetokenError("--reference is of the pages, which --json doesn't make; give one.")
    if len(folders) == 1 and not fail_on_regression:
        _pages(folders[0], reference, as_json)
    elif len(folders) == 2 and not reference:
        _comparison(folders[0], folders[1], as_json, fail_on_regression)
    elif len(folders) > 2:
        raise ForetokenError(f"{len(folders)} folders were given; give one, or two to compare.")
    else:
        raise ForetokenError(
            "--reference goes with one folder and --fail-on-regression with two to compare."
        )


def _pages(folder: Path, reference: bool, as_json: bool) -> None:
    from foretoken.bench.report import terminal
    from foretoken.bench.report.folder import read_folder
    from foretoken.bench.report.page import write_pages
    from foretoken.bench.report.reference import published

    results = read_folder(folder)
    if as_json:
        output.write_json(results)
        return
    pages = write_pages(folder, results, reference=reference)
    console = output.console(width=100)
    terminal.show(console, results, None, published(results) if reference else None)
    console.print(f"\nReport: {pages[-1]}")


def _comparison(before: Path, after: Path, as_json: bool, fail_on_regression: bool) -> None:
    from foretoken.bench.report.compare import compare

    comparison = compare(before, after)
    if fail_on_regression and not comparison.changes:
        raise ForetokenError(
            f"{before} and {after} measured nothing alike, so nothing tells whether it is worse; "
            "measure the same targets and methods."
        )
    if as_json:
        output.write_json(comparison.data())
    else:
        _show(comparison)
    if fail_on_regression and comparison.regressions:
        raise typer.Exit(1)


def _show(comparison: Comparison) -> None:
    from rich.text import Text

    from foretoken.bench.report import terminal
    from foretoken.bench.report.compare import table

    console = output.console(width=100)
    console.print(Text(f"{comparison.before} → {comparison.after}", "bold"))
    for difference in comparison.differences:
        console.print(Text(f"different {difference}", "dim"))
    for names, folder in (
        (comparison.only_before, comparison.before),
        (comparison.only_after, comparison.after),
    ):
        for name in names:
            console.print(Text(f"only in {folder}: {name}"))
    for change in comparison.beyond:
        style = "red" if change.regression else ""
        console.print(Text(f"{change.sentence} on {change.where}", style))
    if not comparison.changes:
        console.print("Nothing was measured in both.")
    elif not comparison.beyond:
        console.print("No change beyond noise.")
    if comparison.changes:
        console.print()
        console.print(terminal.lines(table(comparison), console.width))
