"""`foretoken export-answers`: a run's answers as the scripts of another benchmark read them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import output


class Benchmark(StrEnum):
    """Whose scripts are to read the answers."""

    SPEC_BENCH = "spec-bench"


def export_answers(
    run: Annotated[Path, typer.Argument(help="The folder of a run of foretoken bench.")],
    to: Annotated[Benchmark, typer.Option("--to", help="Whose scripts are to read them.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to; by default RUN/spec-bench.")
    ] = None,
) -> None:
    """Write a run's answers as another benchmark has them, so that its own scripts judge them.

    For Spec-Bench: a file for each method, plain decoding's named vanilla, which its speed.py and
    equal.py compare. Questions that failed are not in a file.

    Example: [bold]foretoken export-answers my-run --to spec-bench[/bold]
    """
    from foretoken.bench.report.answer_files import write_spec_bench
    from foretoken.bench.report.wording import count

    for file in write_spec_bench(run, out or run / to):
        failed = f", {file.failed} failed" if file.failed else ""
        output.write(f"{file.path}: {count(file.questions, 'question')}{failed}")
