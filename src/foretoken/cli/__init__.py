"""The command line: one file a command. What is heavy is imported when a command runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence as Seq
from importlib.util import find_spec
from pathlib import Path

from foretoken.errors.extras import missing

_NEEDED = ("typer", "rich", "jinja2", "yaml")


def main(arguments: Seq[str] | None = None) -> None:
    """Run the command line and exit."""
    _open_streams()
    lacking = ", ".join(name for name in _NEEDED if find_spec(name) is None)
    if lacking:
        print(f"foretoken: {missing(lacking, 'cli', 'The command line needs')}", file=sys.stderr)
        sys.exit(1)
    try:
        from foretoken.cli.commands import app
    except KeyboardInterrupt:  # from here on `app` does the same
        sys.exit(128 + signal.SIGINT)
    app(args=arguments)


def _open_streams() -> None:
    """A standard stream that the shell closed (`2>&-`) is None: it reads and writes nothing. Left
    as None, `print` would take standard output for it."""
    nowhere = Path(os.devnull)
    sys.stdin = sys.stdin or nowhere.open(encoding="utf-8")
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
