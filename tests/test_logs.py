"""What FORETOKEN_LOG shows, and that nothing but warnings is shown without it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

import structure

SPEAKS = (
    "import foretoken, logging as l; log = l.getLogger('foretoken.engine'); "
    "log.debug('one'); log.info('two'); log.warning('three'); print('out')"
)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (None, ["three"]),
        ("", ["three"]),
        ("error", []),
        ("warning", ["three"]),
        ("info", ["two", "three"]),
        ("DEBUG", ["one", "two", "three"]),
        ("loud", ["FORETOKEN_LOG is 'loud'", "three"]),
    ],
)
def test_what_is_shown(level: str | None, words: list[str]) -> None:
    """On standard error, a line each; standard output is the program's."""
    others = {key: value for key, value in os.environ.items() if key != "FORETOKEN_LOG"}
    env = others if level is None else {**others, "FORETOKEN_LOG": level}
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], capture_output=True, text=True, timeout=60, env=env
    )
    lines = done.stderr.splitlines()
    assert done.stdout == "out\n" and len(lines) == len(words), done.stderr
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_nothing_is_printed_but_by_the_command_line() -> None:
    """No module below it calls print or warnings.warn."""
    for name, path in structure.modules().items():
        if name.startswith("foretoken.cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("print", "warnings.warn"), name
