"""Finds the bundled models, which the distribution foretoken-zoo installs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from foretoken.errors import ForetokenError, unknown

INSTALL = (
    "the package foretoken-zoo; install it in a copy of foretoken's repository: pip install ./zoo"
)


def names() -> list[str]:
    """The bundled models, by name; none where foretoken-zoo is not installed."""
    folder = _folder()
    return [] if folder is None else sorted(p.parent.name for p in folder.glob("*/config.json"))


def path(name: str) -> Path:
    """Folder of the bundled model `name`.

    Raises `ForetokenError` for a name that there isn't, and where foretoken-zoo is not installed.
    """
    folder, available = _folder(), names()
    if folder is None:
        raise ForetokenError(f"The bundled model {name!r} needs {INSTALL}.")
    if name not in available:
        raise unknown("bundled model", name, available)
    return folder / name


def _folder() -> Path | None:
    """Where the models lie as files on disk."""
    try:
        folder = resources.files("foretoken_zoo")
    except ModuleNotFoundError:
        return None
    return folder if isinstance(folder, Path) else None
