"""The Python of a page: its ```python blocks as scripts, on their own lines so that errors point
home.

A block under the line `<!-- not run: needs a GPU -->`, or another reason, is left to the compiler.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

NOT_RUN = re.compile(r"<!-- not run: \w.* -->")


def _lines(page: Path) -> Iterator[tuple[str, bool]]:
    """Each line's code, which is empty outside of blocks, and whether its block is run."""
    inside, run, before = False, True, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("```"):
            inside, run = line.strip() == "```python", not NOT_RUN.fullmatch(before)
            line = ""
        yield (line if inside else "", run)
        before = line


def python_blocks(page: Path) -> str:
    """The blocks that are run, in order, as one script."""
    return "\n".join(line if run else "" for line, run in _lines(page))


def compiled(page: Path) -> CodeType:
    """All blocks as one script, which need not run. Raises SyntaxError where that is none."""
    return compile("\n".join(line for line, _ in _lines(page)), str(page), "exec")


def commands(page: Path, heading: str) -> list[list[str]]:
    """The words of each `foretoken` command of a section, without the program's name."""
    section = page.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n## ")[0]
    start = "    foretoken "
    lines = (line for line in section.splitlines() if line.startswith(start))
    return [shlex.split(line.removeprefix(start)) for line in lines]


def run(page: Path) -> None:
    """Run the page's script as a program."""
    exec(compile(python_blocks(page), str(page), "exec"), {"__name__": "__main__"})
