"""The command line in tests: run in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from foretoken.cli.commands import app

Pair = tuple[Path, Path]
"""The folders of a target and a draft model."""

SRC = "import sys; from foretoken.cli import main; main(sys.argv[1:])"


def run(*arguments: object, typed: str | None = None) -> Any:
    """A command in this process; `typed` is its standard input."""
    return CliRunner().invoke(app, [str(a) for a in arguments], input=typed)


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-c", SRC, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def model(pair: Pair) -> tuple[str, ...]:
    """Options for a short answer of a tiny target."""
    return "--model", str(pair[0]), "--max-tokens", "12"


def sps(pair: Pair) -> tuple[str, ...]:
    """Options for its draft model."""
    return "--method", "sps", "--draft-model", str(pair[1])


def one_sentence(result: Any) -> None:
    """Refused in one line, with nothing on standard output."""
    assert result.exit_code in (1, 2), result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("foretoken: "), result.stderr
    assert not result.stdout
