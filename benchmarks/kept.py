"""What a long benchmark has measured so far, in a file: the same command goes on there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Kept:
    """Findings by name, of one plan; another plan begins anew."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        """plan: what was measured and how, as JSON."""
        self._path, head = path, {"plan": plan}
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
