"""`foretoken new-drafter`: writes a small package with a drafter that works, to start from."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError, shown

_FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "src/{package}/__init__.py": "init.py.j2",
    "src/{package}/{name}.py": "drafter.py.j2",
    "tests/test_{name}.py": "test.py.j2",
}
"""Where a file of the package comes from: the templates' names."""

Name = Annotated[
    str, typer.Argument(help="The drafter's name, as methods are named: e.g. last_seen.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The package's folder; by default ./foretoken-NAME.")
]


def new_drafter(name: Name, out: Out = None) -> None:
    """Write a package with a drafter, its test and the entry point that makes it a method.

    After [bold]pip install -e[/bold] of the folder, {"method": NAME} uses it.

    Example: [bold]foretoken new-drafter last_seen[/bold]
    """
    _check(name)
    package = f"foretoken_{name}"
    folder = out or Path(package.replace("_", "-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ForetokenError(f"{folder} is there already and not empty; give another --out.")
    for place, text in rendered(name, package).items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    output.write(f"{folder}\nNext: pip install -e {folder}, then pytest {folder / 'tests'}")


def rendered(name: str, package: str) -> dict[str, str]:
    """The files of a package, by their paths in its folder."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    words = {
        "name": name,
        "package": package,
        "project": package.replace("_", "-"),
        "Class": "".join(word.capitalize() for word in name.split("_")),
    }
    templates = files("foretoken.cli") / "templates"
    return {
        place.format(**words): environment.from_string(
            (templates / template).read_text(encoding="utf-8")
        ).render(words)
        for place, template in _FILES.items()
    }


def _check(name: str) -> None:
    """Raise `ForetokenError` for what can't name a file, a class and a method."""
    from foretoken.cli.methods import is_free

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ForetokenError(
            f"{shown(name)} can't name a drafter; use lower-case letters, digits and single "
            "underscores, e.g. last_seen."
        )
    if not is_free(name):
        raise ForetokenError(f"foretoken has a method or a drafter {name!r}; take another name.")
