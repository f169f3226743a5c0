"""Options that `foretoken tune` found: a JSON file for a model and a method.

{"schema": 1, "name": "mini-sps", "model": "mini", "method": "sps",
 "speculative_config": {"method": "sps", "model": "mini-draft", "num_speculative_tokens": 5},
 …what was measured}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError, unknown
from foretoken.files import read_json
from foretoken.machine import cache_folder

SCHEMA = 1


def tuned_path(name: str) -> Path:
    """Where the file of this name lies in the cache folder."""
    return cache_folder() / "tuned" / f"{name}.json"


def read_tuned(name: str | Path) -> dict[str, Any]:
    """The `speculative_config` in a file, by its path or by its name in the cache folder.

    Raises `ForetokenError` where there is no such file or it is not one of these.
    """
    path = Path(name)
    if path.suffix != ".json":
        path = tuned_path(str(name))
    if not path.is_file():
        known = [file.stem for file in path.parent.glob("*.json")]
        if Path(name).suffix != ".json" and known:
            raise unknown("tuned method", str(name), known)
        raise ForetokenError(f"There is no {path}; make it with foretoken tune, or give a path.")
    content = read_json(path, "a file of foretoken tune", schema=SCHEMA)
    if not isinstance(content.get("speculative_config"), dict):
        raise ForetokenError(f"{path} can't be read as a file of foretoken tune: it has no config.")
    return dict(content["speculative_config"])


def untuned(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with "tuned" replaced by what it names; what is given next to it wins."""
    given = dict(config)
    name = given.pop("tuned", None)
    return given if name is None else {**read_tuned(name), **given}
