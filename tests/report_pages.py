"""A report's pages as text, for tests of what they show."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner

from foretoken.bench.record import Results
from foretoken.bench.report import terminal
from foretoken.cli.commands import app


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def printed(results: list[Results], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        terminal.show(console, results, None)
    return capture.get()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])
