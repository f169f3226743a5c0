"""Writes a run's answers as Spec-Bench's own scripts read them.

Source: Spec-Bench (Xia et al. 2024), evaluation/eval.py, which writes such files, and speed.py and
equal.py, which read them: a file for each method, a JSON object a line for each question, in it one
choice with a list over turns of texts, steps, tokens and seconds, and a list over steps of the
tokens that each step wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from foretoken.bench.measure.metrics import group_by, without_failures
from foretoken.bench.record import BASELINE, Answer
from foretoken.bench.report.samples import read_answers
from foretoken.errors import ForetokenError
from foretoken.files import write_file

_VANILLA = "vanilla"
"""What Spec-Bench calls plain decoding."""


@dataclass(frozen=True)
class AnswerFile:
    """A file that was written. failed: questions that are not in it, as they have no answer."""

    path: Path
    questions: int
    failed: int


def write_spec_bench(folder: Path, out: Path) -> list[AnswerFile]:
    """Write to `out` the answers of the run in `folder`: a file for each target, precision, method,
    temperature and batch size, named by them. What is there under these names is replaced.

    Raises `ForetokenError` where there are no answers, and for those of a server, which doesn't
    tell what each step wrote.
    """
    samples = folder / "samples.jsonl"
    answers = read_answers(samples)
    if not answers:
        raise ForetokenError(f"{folder} has no answers; measure something into it first.")
    written: dict[str, AnswerFile] = {}
    for name, own in group_by(model_id, answers).items():
        path = out / (re.sub(r"[^\w.+-]+", "-", name) + ".jsonl")
        if path.name in written:
            raise ForetokenError(
                f"{name} and another method would both be written to {path.name}; give them labels "
                "that differ in letters, by --method-config."
            )
        kept = without_failures(own)
        lines = [
            _line(name, turns, samples.stat().st_mtime)
            for turns in group_by(lambda a: a.id, kept).values()
        ]
        lines.sort(key=lambda line: (isinstance(line["question_id"], str), line["question_id"]))
        write_file(path, "".join(json.dumps(line) + "\n" for line in lines))
        failed = len({a.id for a in own}) - len(lines)
        written[path.name] = AnswerFile(path, len(lines), failed)
    return list(written.values())


def model_id(answer: Answer) -> str:
    """Who answered, in Spec-Bench's way: vicuna-7b-v1.3-vanilla-float16-temp-0.0."""
    method = _VANILLA if answer.method == BASELINE else answer.method
    name = f"{answer.target}-{method}-{answer.dtype}-temp-{answer.temperature}"
    return name if answer.batch_size == 1 else f"{name}-batch-{answer.batch_size}"


def _line(name: str, turns: Seq[Answer], stamp: float) -> dict[str, Any]:
    """A question's line. stamp: seconds since 1970."""
    turns = sorted(turns, key=lambda a: a.turn)
    first = turns[0]
    choice = {
        "index": 0,
        "turns": [a.text.strip() for a in turns],
        "decoding_steps": [a.passes for a in turns],
        "new_tokens": [a.tokens for a in turns],
        "wall_time": [a.seconds["total"] for a in turns],
        "accept_lengths": [length for a in turns for length in step_lengths(a)],
    }
    return {
        "question_id": int(first.id) if first.id.isdecimal() else first.id,
        "category": first.category,
        "answer_id": str(uuid5(NAMESPACE_OID, f"{name} {first.id}")),
        "model_id": name,
        "choices": [choice],
        "tstamp": stamp,
    }


def step_lengths(answer: Answer) -> list[int]:
    """How many tokens each step wrote: accepted ones, and after them the target's own. A step of
    which a stop left nothing wrote 0."""
    lengths = list(_lengths(answer.accepted))
    if answer.counted is not None or len(lengths) > answer.passes:
        raise ForetokenError(
            f"The answers of {answer.method} to {answer.id!r} don't tell what each step wrote, as "
            "a server's never do; export a run of --engine foretoken."
        )
    return lengths + [0] * (answer.passes - len(lengths))


def _lengths(accepted: Seq[bool]) -> Iterable[int]:
    """Each stretch of accepted tokens is a step's, with the next token, if there is one."""
    pending = 0
    for kept, stretch in groupby(accepted):
        count = sum(1 for _ in stretch)
        if kept:
            pending = count
        else:
            yield pending + 1
            yield from [1] * (count - 1)
            pending = 0
    if pending:
        yield pending
