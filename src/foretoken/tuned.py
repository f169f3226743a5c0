"""Reads the options that `foretoken tune` or `foretoken recommend` found best, from a JSON file.

{"schema": 1, "name": "mini-sps", "model": "mini", "method": "sps",
 "speculative_config": {"method": "sps", "model": "mini-draft", "num_speculative_tokens": 5},
 …what was measured}
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError, shown, unknown
from foretoken.files import read_json
from foretoken.machine import cache_folder
from foretoken.registry import FILES, OPTION_ALIASES, replaced

SCHEMA, SUFFIX = 1, ".json"
_WHAT = "a file of foretoken tune"
_PLACES = (*FILES, "tokenizer", "target_tokenizer")


def tuned_path(name: str) -> Path:
    """The path of the file of this name in the cache folder."""
    return cache_folder() / "tuned" / f"{name}{SUFFIX}"


def read_tuned(name: str | Path) -> dict[str, Any]:
    """The `speculative_config` of a file, given by its path or by its name in the cache folder.

    Raises `ForetokenError` where there is no such file or it is not one of these.
    """
    if not isinstance(name, (str, Path)):
        raise ForetokenError(f"tuned is {shown(name)}; give a file's path, or its name.")
    path = Path(name)
    if path.suffix != SUFFIX:
        path = tuned_path(str(name))
    if not path.is_file():
        known = [file.stem for file in path.parent.glob(f"*{SUFFIX}")]
        if Path(name).suffix != SUFFIX and known:
            raise unknown("tuned method", str(name), known)
        raise ForetokenError(f"There is no {path}; make it with foretoken tune, or give a path.")
    config = read_json(path, _WHAT, schema=SCHEMA).get("speculative_config")
    if not isinstance(config, dict):
        raise ForetokenError(f"{path} can't be read as {_WHAT}: it has no speculative_config.")
    return config


def from_anywhere(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config to be kept: where it names files by paths from this folder, their whole paths. Names
    and hub ids stay."""
    return {key: _whole(key, value) for key, value in config.items()}


def _whole(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):  # a part's options
        return from_anywhere(value)
    if OPTION_ALIASES.get(key, key) not in _PLACES:
        return value
    if isinstance(value, (list, tuple)):
        return [_whole(key, one) for one in value]
    with suppress(OSError, ValueError):  # of names that no file can have
        if isinstance(value, (str, Path)) and Path(value).exists():
            return str(Path(value).absolute())
    return value


def resolve_tuned(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose "tuned" is replaced by the options of that name; other options given win."""
    given = dict(config)
    name = given.pop("tuned", None)
    return given if name is None else replaced(read_tuned(name), given)
