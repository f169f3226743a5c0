"""The command line in tests: run in this process or in one of its own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner

from foretoken.cli.commands import app
from foretoken.engine.stats import AcceptanceStats

Pair = tuple[Path, Path]
"""The folders of a target and a draft model."""

SRC = "import sys; from foretoken.cli import main; main(sys.argv[1:])"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def harmless(text: str) -> bool:
    """Whether a terminal writes all of it and obeys none."""
    return all(letter in "\n\t" or letter.isprintable() for letter in text)


class Saying:
    """A model that answers in these pieces, as far as `LLM.stream` shows it."""

    def __init__(self, *pieces: str) -> None:
        self.method, self._pieces = "none", pieces
        self.stats = AcceptanceStats()

    def stream(self, *_: Any) -> Iterator[Any]:
        for size in range(1, len(self._pieces) + 1):
            sample = SimpleNamespace(index=0, text="".join(self._pieces[:size]))
            yield SimpleNamespace(outputs=[sample], error=None, stats=self.stats)


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
