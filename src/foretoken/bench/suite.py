"""Prompts to measure on: a file with a JSON object a line, `id`, `task` and `turns`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from foretoken.errors import ForetokenError


@dataclass(frozen=True)
class Prompt:
    """One conversation's user turns."""

    id: str
    task: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class Suite:
    """sha256 is the file's, whether or not all of its prompts are used."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def in_turn(self, limit: int | None = None) -> list[Prompt]:
        """The first prompt of every task, then the second of every task, and so on.

        So whoever stops early has measured all tasks alike. `limit` bounds the prompts of a task.
        """
        tasks: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            tasks.setdefault(prompt.task, []).append(prompt)
        deepest = max(map(len, tasks.values()), default=0)
        count = deepest if limit is None else min(limit, deepest)
        return [own[i] for i in range(count) for own in tasks.values() if i < len(own)]


def load_suite(path: Path, name: str) -> Suite:
    """Read a file of prompts. Raises `ForetokenError` where it is missing or malformed."""
    try:
        data = path.read_bytes()
        rows = [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]
        prompts = tuple(Prompt(str(r["id"]), str(r["task"]), tuple(r["turns"])) for r in rows)
    except OSError as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ForetokenError(
            f"{path} is not a file of prompts; give a JSON object a line with id, task and turns."
        ) from error
    if not prompts:
        raise ForetokenError(f"{path} holds no prompts.")
    return Suite(name, hashlib.sha256(data).hexdigest(), prompts)
