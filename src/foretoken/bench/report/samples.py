"""Chooses what a report shows of samples.jsonl: an answer for every task, and failures.

The file of a long measurement may not fit into memory, so it is read once, line by line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from foretoken.bench.record import BASELINE, Answer, Results
from foretoken.bench.report.selection import method_order
from foretoken.errors import ForetokenError

SHOWN_TOKENS = 120
SHOWN_FAILURES = 20

_log = logging.getLogger(__name__)


def each_answer(path: Path) -> Iterator[Answer]:
    """The answers of samples.jsonl, none where there is no such file. A last line that was never
    written to its end is not read, as in a run that goes on or was killed; the log says so. Raises
    `ForetokenError` for a damaged line."""
    if path.is_file():
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    answer = _answer(line, number, path)
                except ForetokenError:
                    if line.endswith(b"\n"):
                        raise
                    _log.warning("%s, line %d is torn and not read.", path, number)
                else:
                    yield answer


def _answer(line: bytes, number: int, path: Path) -> Answer:
    try:
        return Answer.parse(line)
    except ForetokenError as error:
        raise ForetokenError(
            f"{path}, line {number} is damaged: {error}; delete the line, or measure again."
        ) from error


def read_answers(path: Path) -> list[Answer]:
    return list(each_answer(path))


@dataclass(frozen=True)
class Sample:
    """One prompt with what the drafting methods answered; lowest temperature, fastest first."""

    first: Answer
    answers: Seq[Answer]


class Shown:
    """What a page shows of a target's answers: first turns at the smallest batch size, failures."""

    def __init__(self, results: Results) -> None:
        target = results["target"]
        self.failures: list[Answer] = []
        self._of = target["name"], target["dtype"]
        self._left_out = set(results["suite"]["left_out"])
        self._places = {name: i for i, name in enumerate(method_order([results]))}
        self._size = min((run["batch_size"] for run in results["runs"]), default=1)
        self._by_task: dict[str, dict[str, list[Answer]]] = {}

    def add(self, answer: Answer) -> None:
        """Keep the answer if its prompt may be shown, by the answers added so far."""
        if (answer.target, answer.dtype) != self._of:
            return
        if answer.error is not None:
            if len(self.failures) < SHOWN_FAILURES:
                self.failures.append(answer)
        elif answer.turn == 0 and answer.batch_size == self._size:
            prompts = self._by_task.setdefault(answer.task, {})
            if answer.id in prompts or set(prompts) <= self._left_out:
                prompts.setdefault(answer.id, []).append(answer)

    @property
    def samples(self) -> list[Sample]:
        """The first prompt of every task that is not left out (else the first)."""
        samples = []
        for own in self._by_task.values():
            chosen = next((i for i in own if i not in self._left_out), next(iter(own)))
            drafted = [a for a in own[chosen] if a.method != BASELINE]
            if drafted:
                drafted.sort(key=lambda a: (a.temperature, self._places.get(a.method, 0)))
                samples.append(Sample(drafted[0], drafted))
        return samples


def shown(results: Seq[Results], answers: Iterable[Answer]) -> list[Shown]:
    """What to show of each of `results`."""
    pages = [Shown(part) for part in results]
    for answer in answers:
        for page in pages:
            page.add(answer)
    return pages


def samples(results: Results, answers: Iterable[Answer]) -> list[Sample]:
    """An answered prompt for every task."""
    return shown([results], answers)[0].samples


def example(results: Results, answers: Iterable[Answer], method: str) -> Answer | None:
    """The answer to show in a terminal: this method's first greedy one of `samples`."""
    for sample in samples(results, answers):
        for answer in sample.answers:
            if answer.method == method and answer.temperature == 0 and len(answer.token_ids) > 4:
                return answer
    return None
