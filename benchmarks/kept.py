"""What a long script has measured so far, so that it goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from foretoken.files import read_json, write_json
from foretoken.machine import cache_folder


class Kept:
    """Cells by their names, in a file of the user's cache folder. Those that were measured with
    other settings are forgotten."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self._path = cache_folder() / "benchmarks" / f"{name}.json"
        self._settings = json.loads(json.dumps(settings, default=str))
        self._cells: dict[str, Any] = {}
        if self._path.is_file():
            known = read_json(self._path, "cells of a benchmark")
            if known["settings"] == self._settings:
                self._cells = known["cells"]

    def cell(self, name: str, measure: Callable[[], Any]) -> Any:
        """What was measured under this name, or is measured now."""
        if name not in self._cells:
            self._cells[name] = measure()
            write_json(self._path, {"settings": self._settings, "cells": self._cells})
            print(f"{name}: {json.dumps(self._cells[name])}", flush=True)
        return self._cells[name]

    def forget(self) -> None:
        """The record is written: the next run begins anew."""
        self._path.unlink(missing_ok=True)
