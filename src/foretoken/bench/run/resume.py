"""A run's folder: what it was asked to do, and answers that no kill can damage.

plan.json says what is being run, so a folder is only ever continued with the same. A unit's lines
go to samples.jsonl in one write and are on the disk before the next unit begins. Whatever a kill
left of a unit is cut off and served again, so a resumed file equals an uninterrupted one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer
from foretoken.errors import ForetokenError
from foretoken.files import read_json, write_json

PLAN, SAMPLES = "plan.json", "samples.jsonl"

Key = tuple[str, str, str, float, int, str, int]


def read_plan(folder: Path) -> dict[str, Any]:
    """What a folder's run was asked to do. Raises `ForetokenError` where it can't be read."""
    return read_json(folder / PLAN, "a run's plan")


def hold_to(folder: Path, plan: Mapping[str, Any]) -> None:
    """Bind a folder to a plan, in JSON's types, unless it is bound to it.

    Raises `ForetokenError` where it holds answers of another plan, naming the first difference.
    """
    if (folder / PLAN).is_file():
        if _answers(folder):
            compare(folder, read_plan(folder), plan)
    elif _answers(folder):
        raise ForetokenError(
            f"{folder} holds answers and no {PLAN} to go on with; give another --out."
        )
    write_json(folder / PLAN, plan)


def _answers(folder: Path) -> bool:
    samples = folder / SAMPLES
    return any(folder.glob("results*.json")) or (samples.exists() and samples.stat().st_size > 0)


def compare(where: Path, before: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Raises `ForetokenError` for the first difference from what was begun there."""
    for key in {**plan, **before}:
        if before.get(key) != plan.get(key):
            raise ForetokenError(
                f"{where} holds a run with {key} {json.dumps(before.get(key))}, and now it is "
                f"{json.dumps(plan.get(key))}; give what it was begun with, or another --out."
            )


def expected(unit: Unit, labels: Seq[str], target: str, dtype: str) -> list[Key]:
    """The keys of a unit's answers, in the order of their lines."""
    return [
        (target, dtype, label, unit.temperature, unit.batch_size, prompt.id, turn)
        for turn in range(max(len(p.turns) for p in unit.prompts))
        for label in labels
        for prompt in unit.prompts
        if turn < len(prompt.turns)
    ]


class Samples:
    """samples.jsonl, open for adding whole units. A torn last line is not read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SAMPLES
        self.answers: list[Answer] = []
        self._ends: list[int] = []
        lines = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        end = 0
        for number, line in enumerate(lines[:-1], 1):
            end += len(line) + 1
            try:
                self.answers.append(Answer.parse(line.decode()))
            except (ValueError, TypeError) as error:
                raise ForetokenError(f"{self.path}, line {number} is damaged: {error}.") from error
            self._ends.append(end)

    def of(self, target: str, dtype: str) -> list[Answer]:
        """What one target answered at one precision."""
        return [a for a in self.answers if (a.target, a.dtype) == (target, dtype)]

    def resume(self, first: int, units: Seq[Seq[Key]]) -> int:
        """How many of the units are wholly there, from the answer number `first` on.

        What stands after them is cut off. Raises `ForetokenError` where another answer stands in
        a unit's place.
        """
        at, done = first, 0
        for keys in units:
            found = [a.key for a in self.answers[at : at + len(keys)]]
            if found != list(keys)[: len(found)]:
                line = at + 1 + next(i for i, key in enumerate(found) if key != keys[i])
                raise ForetokenError(
                    f"{self.path}, line {line} holds {self.answers[line - 1].key}, which {PLAN} "
                    "does not put there; give another --out."
                )
            if len(found) < len(keys):
                break
            at, done = at + len(keys), done + 1
        self._cut(at)
        return done

    def _cut(self, count: int) -> None:
        """Keep so many answers and nothing after them."""
        del self.answers[count:], self._ends[count:]
        end = self._ends[-1] if self._ends else 0
        if self.path.exists() and self.path.stat().st_size != end:
            os.truncate(self.path, end)

    def add(self, answers: Seq[Answer]) -> None:
        """Append a unit's answers; on the disk when this returns."""
        lines = [(a.line() + "\n").encode() for a in answers]
        with self.path.open("ab") as file:
            start = file.tell()
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        for answer, line in zip(answers, lines, strict=True):
            start += len(line)
            self.answers.append(answer)
            self._ends.append(start)
