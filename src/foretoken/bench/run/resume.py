"""A run's folder: its plan, and answers that no interruption can damage.

plan.json describes the run, so a folder is only ever resumed with the same one. A unit's lines go
to samples.jsonl in one write and are on the disk before the next unit begins. What an interruption
left of a unit is cut off and served again, so a resumed file equals an uninterrupted one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer
from foretoken.errors import ForetokenError
from foretoken.files import read_json, utf8, write_json

PLAN, SAMPLES = "plan.json", "samples.jsonl"
COUNT = "prompts"
"""How many prompts a plan comes to, all shards together, for reports of unfinished runs. It follows
from the rest, and earlier versions didn't write it, so plans are compared without it."""

_log = logging.getLogger(__name__)

Key = tuple[str, str, str, float, int, str, int]


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan of a folder's run. Raises `ForetokenError` where it can't be read."""
    return read_json(folder / PLAN, "a run's plan")


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write a run's plan, in JSON's types, to its folder.

    Raises `ForetokenError` where there are answers of another plan, naming the first difference.
    """
    if (folder / PLAN).is_file():
        if _has_answers(folder):
            check_same(folder, read_plan(folder), plan)
    elif _has_answers(folder):
        raise ForetokenError(
            f"{folder} has answers and no {PLAN} to resume with; give another --out."
        )
    write_json(folder / PLAN, plan)


def _has_answers(folder: Path) -> bool:
    samples = folder / SAMPLES
    return any(folder.glob("results*.json")) or (samples.exists() and samples.stat().st_size > 0)


def check_same(where: Path, before: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Raises `ForetokenError` for the first difference from the plan in the folder."""
    for key in {**plan, **before}:
        if key != COUNT and before.get(key) != plan.get(key):
            raise ForetokenError(
                f"{where} has a run with {key} {json.dumps(before.get(key))}, and now it is "
                f"{json.dumps(plan.get(key))}; give what it was begun with, or another --out."
            )


def answer_keys(unit: Unit, labels: Seq[str], target: str, dtype: str) -> list[Key]:
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
                self.answers.append(Answer.parse(line))
            except ForetokenError as error:
                raise ForetokenError(f"{self.path}, line {number} is damaged: {error}.") from error
            self._ends.append(end)
        if lines[-1]:
            _log.warning(
                "%s ends in the middle of line %d, which is measured again.", self.path, len(lines)
            )

    def of(self, target: str, dtype: str) -> list[Answer]:
        """The answers of one target at one precision."""
        return [a for a in self.answers if (a.target, a.dtype) == (target, dtype)]

    def resume(self, first: int, units: Seq[Seq[Key]]) -> int:
        """How many of the units are complete, from the answer number `first` on.

        What is left of an incomplete one is cut off; other targets' answers, after those of all
        units, stay. Raises `ForetokenError` where a unit's place has another answer.
        """
        at, done = first, 0
        for keys in units:
            written = [a.key for a in self.answers[at : at + len(keys)]]
            if written != list(keys)[: len(written)]:
                line = at + 1 + next(i for i, key in enumerate(written) if key != keys[i])
                raise ForetokenError(
                    f"{self.path}, line {line} has {self.answers[line - 1].key}, which {PLAN} "
                    "does not put there; give another --out."
                )
            if len(written) < len(keys):
                break
            at, done = at + len(keys), done + 1
        later = {a.key[:2] for a in self.answers[at:]} - {key[:2] for keys in units for key in keys}
        self._cut(len(self.answers) if later and done == len(units) else at)
        return done

    def _cut(self, count: int) -> None:
        """Keep the first `count` answers and nothing after them."""
        del self.answers[count:], self._ends[count:]
        end = self._ends[-1] if self._ends else 0
        if self.path.exists() and self.path.stat().st_size != end:
            os.truncate(self.path, end)

    def add(self, answers: Seq[Answer]) -> None:
        """Append a unit's answers; on the disk when this returns.

        Raises `ForetokenError` where they can't be written; those before them stay.
        """
        lines = [utf8(a.line() + "\n") for a in answers]
        try:
            with self.path.open("ab") as file:
                start = file.tell()
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ForetokenError(
                f"{self.path} can't be written: {error.strerror}; what was measured before is "
                "kept, and the same command resumes there."
            ) from error
        for answer, line in zip(answers, lines, strict=True):
            start += len(line)
            self.answers.append(answer)
            self._ends.append(start)
