"""What a long benchmark has measured so far, in a file: the same command goes on there."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretoken.machine import cache_folder


class Kept:
    """Findings by name, of one plan; another plan begins anew."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        """plan: what was measured and how, as JSON."""
        self._path, head = path, json.loads(json.dumps({"plan": plan}, default=str))
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        if lines and json.loads(lines[0]) == head:
            self._found = dict(json.loads(line) for line in lines[1:])
            return
        self._found = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head) + "\n", "utf-8")

    def get(self, name: str) -> Any:
        """A finding, or None."""
        return self._found.get(name)

    def keep(self, name: str, what: Any) -> Any:
        """The finding, which is written down."""
        self._found[name] = what
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, what]) + "\n")
        return what

    def cell(self, name: str, measure: Callable[[], Any]) -> Any:
        """What was found under this name, or is measured now."""
        found = self.get(name)
        if found is None:
            found = self.keep(name, measure())
            print(f"{name}: {json.dumps(found)}", flush=True)
        return found

    def forget(self) -> None:
        """The record is written: the next run begins anew."""
        self._path.unlink(missing_ok=True)


def of_options(name: str, given: Namespace) -> Kept:
    """What a benchmark with these options has found, in the cache folder."""
    plan = {key: value for key, value in vars(given).items() if key not in ("check", "out")}
    return Kept(cache_folder() / "benchmarks" / f"{name}.jsonl", plan)
