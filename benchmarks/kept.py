"""What a long benchmark has measured so far, in a file: the same command goes on there."""

from __future__ import annotations

import hashlib
import json
import os
from argparse import Namespace
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch

import foretoken
from foretoken import zoo
from foretoken.files import fingerprint
from foretoken.machine import cache_folder, processor
from foretoken.models import gguf
from foretoken.models.load import find


class Kept:
    """Findings by name, of one plan; another plan begins anew."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        """plan: what was measured and how, as JSON. What a kill left of a last line is cut off."""
        self._path, head = path, json.loads(json.dumps({"plan": plan}, default=str))
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if lines and json.loads(lines[0]) == head:
            self._found = dict(json.loads(line) for line in lines[1:])
            os.truncate(path, len(whole))
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


def of_options(
    script: Path, given: Namespace, models: Seq[str | Path], texts: Seq[str] = ()
) -> Kept:
    """What this benchmark with these options has found, in the cache folder: of the same source,
    models and texts (the bundled prompts and these files), by as many threads of such a machine."""
    options = {key: value for key, value in vars(given).items() if key not in ("check", "out")}
    read = [zoo.prompts_path(), *map(Path, texts)]
    plan = {
        "code": code(script, Path(__file__).with_name("shared.py")),
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "models": [fingerprint(*gguf.files_of(find(model))) for model in models],
        "texts": [fingerprint(file) for file in read],
        "options": options,
    }
    return Kept(cache_folder() / "benchmarks" / f"{script.stem}.jsonl", plan)


def code(*scripts: Path) -> str:
    """foretoken's source and these files as 16 hex digits, for plans of checks: what was right with
    another one may be wrong with this one."""
    root, digest = Path(foretoken.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".cpp", ".h"):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    for script in scripts:
        digest.update(f"{script.name}\0".encode() + script.read_bytes())
    return digest.hexdigest()[:16]
