"""Asks every engine every prompt in turn, and turns the answers into numbers.

One engine works at a time, and the order of the rows rotates from repeat to repeat, so that a
machine whose speed drifts affects all alike. Every row is asked for one token and then for the
whole answer.

- Whole call: tokens ÷ seconds, the prompt included.
- Decoding: (tokens − 1) ÷ (seconds − seconds in which the same engine *plainly* writes one token).
  The same subtraction for every engine: their own clocks divide prompt and tokens in different
  ways, and what speculation adds, such as the drafter's reading of the prompt, is decoding here.

Seconds are those around an engine's call, in its own process; llama.cpp's server reports its own,
without HTTP. Of the repeats the median counts. An end of text counts as a token, whether an engine
hands it out or not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lineup import Row, like, plain
from protocol import Failed, Worker

from foretoken.bench.measure.metrics import bootstrap

PAUSE = 0.02  # seconds in which the threads of the engine before fall asleep
_WARM_UP_TOKENS = 8


@dataclass
class Answer:
    """A row's answers to a prompt. first, whole: seconds of each repeat, for one token and all.

    texts: the different lists of token ids that the repeats gave; one, where all is well.
    """

    texts: list[list[int]] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def tokens(self) -> int:
        return len(self.texts[0]) if self.texts else 0


Answers = Mapping[Row, Sequence[Answer]]
"""A row's answers, in the order of the prompts."""


def measure(
    workers: Mapping[str, Worker],
    rows: Sequence[Row],
    prompts: Sequence[Sequence[int]],
    *,
    eos: int,
    max_tokens: int,
    repeats: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[Row, list[Answer]]:
    """Answers of all rows to all prompts. A failure is stored in the answer."""
    for row in rows:
        _ask(workers[row.engine], row, prompts[0], _WARM_UP_TOKENS, eos, Answer())
    results = {row: [Answer() for _ in prompts] for row in rows}
    turn = 0
    for place, prompt in enumerate(prompts):
        for _ in range(repeats):
            at = turn % len(rows)
            turn += 1
            for row in [*rows[at:], *rows[:at]]:
                _ask(workers[row.engine], row, prompt, max_tokens, eos, results[row][place])
            advance()
    return results


def _ask(
    worker: Worker, row: Row, prompt: Sequence[int], max_tokens: int, eos: int, answer: Answer
) -> None:
    if answer.error is not None:
        return
    time.sleep(PAUSE)
    try:
        _, first = worker.ask(row.method, prompt, 1)
        ids, whole = worker.ask(row.method, prompt, max_tokens)
    except Failed as error:
        answer.error = str(error)
        return
    text = ended(ids, eos, max_tokens)
    if text not in answer.texts:
        answer.texts.append(text)
    answer.first.append(first)
    answer.whole.append(whole)


def ended(ids: Sequence[int], eos: int, max_tokens: int) -> list[int]:
    """Up to and with the end of text, which some engines leave out."""
    text = list(ids)[:max_tokens]
    if eos in text:
        return text[: text.index(eos) + 1]
    return [*text, eos] if len(text) < max_tokens else text


@dataclass
class Totals:
    """Tokens and seconds of each prompt, for the whole call or for decoding alone."""

    tokens: list[float]
    seconds: list[float]

    @property
    def speed(self) -> float | None:
        """Tokens per second."""
        return sum(self.tokens) / sum(self.seconds) if sum(self.seconds) > 0 else None


def totals(answers: Answers, row: Row, places: Sequence[int], part: str) -> Totals:
    """Over the prompts at `places`, which the row and its engine's plain decoding answered.

    part: "whole" or "decoding".
    """
    mine = [answers[row][i] for i in places]
    whole = [statistics.median(a.whole) for a in mine]
    if part == "whole":
        return Totals([float(a.tokens) for a in mine], whole)
    first = [statistics.median(answers[plain(row)][i].first) for i in places]
    rest = [
        spent - one if a.tokens > 1 else 0.0
        for a, spent, one in zip(mine, whole, first, strict=True)
    ]
    return Totals([float(a.tokens - 1) for a in mine], rest)


def ratio(answers: Answers, over: Row, under: Row, part: str) -> dict[str, Any] | None:
    """{"ratio", "ci95"} of two rows' speeds on the prompts that both answered, or None."""
    everyone = range(len(answers[over]))
    shared = [i for i in everyone if all(_answered(answers, row, i) for row in (over, under))]
    a, b = (totals(answers, row, shared, part) for row in (over, under))
    if not a.speed or not b.speed:
        return None
    interval = bootstrap(a.tokens, a.seconds, b.tokens, b.seconds)
    return {"ratio": a.speed / b.speed, "ci95": interval}


def _answered(answers: Answers, row: Row, place: int) -> bool:
    return all(answers[r][place].error is None for r in (row, plain(row)))


def numbers(answers: Answers, row: Row) -> dict[str, Any]:
    """A row of the results, but for how its tokens compare."""
    done = [i for i in range(len(answers[row])) if _answered(answers, row, i)]
    failed = [answer.error for answer in answers[row] if answer.error is not None]
    results: dict[str, Any] = {
        "engine": row.engine,
        "kind": row.kind,
        "note": row.note,
        "options": row.options,
        "prompts": len(done),
        "tokens": sum(answers[row][i].tokens for i in done),
        "failed": len(failed),
        "error": failed[0] if failed else None,
    }
    for part in ("decoding", "whole"):
        results[part] = {
            "tokens_per_second": totals(answers, row, done, part).speed,
            "over_own_plain": ratio(answers, row, plain(row), part),
            "foretoken_over_it": ratio(answers, like(row), row, part),
        }
    return results
