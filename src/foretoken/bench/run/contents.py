"""What the files of a run's models hold: a run is only resumed with the same weights.

A drafter is trained again at the same path, and a datastore made again; the names in a plan would
stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError
from foretoken.files import fingerprint
from foretoken.models import gguf
from foretoken.models.load import find
from foretoken.registry import FILES, OPTION_ALIASES

_PATHS = {*FILES, *(key for key, own in OPTION_ALIASES.items() if own in FILES)}


def contents(model: str | Path, configs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What the model and each model, datastore or set of layers in the configs hold, as 16 hex
    digits under "contents of NAME"."""
    named = dict.fromkeys([str(model), *(name for one in configs for name in _named(one))])
    found = ((name, _place(name)) for name in named)
    return {
        f"contents of {name}": fingerprint(*gguf.files_of(path))
        for name, path in found
        if path is not None
    }


def _named(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _named(value)
        elif key in _PATHS:
            several = value if isinstance(value, (list, tuple)) else [value]
            yield from (str(one) for one in several if isinstance(one, (str, Path)))


def _place(name: str) -> Path | None:
    """Where a name's files are; None for a name of something else, or of nothing, which is refused
    where it is opened."""
    path = Path(name)
    if path.exists():
        return path
    try:
        return find(name)
    except ForetokenError:
        return None
