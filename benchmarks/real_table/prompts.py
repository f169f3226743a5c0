"""Which prompts: the official Spec-Bench questions, and twenty of our own.

The questions are read by the packaged suite `spec-bench` (the folder that FORETOKEN_DATA names, or
the cache) and are never part of this tree. prompts.jsonl beside this file holds ten requests to
edit code and ten to correct a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foretoken.bench.suites.suite import Prompt, Suite, find_suite, load_suite

OWN = Path(__file__).with_name("prompts.jsonl")
EVERY = 8
SCREENED = (0, 4, 8)
"""Which of a task's ten prompts the screen takes."""


def own() -> Suite:
    """The twenty of this tree."""
    return load_suite(OWN, "editing and correcting")


def official() -> Suite:
    """The 480 questions. Raises `ForetokenError` where they are not on this machine."""
    return find_suite("spec-bench", download=False)


def of_stage(
    stage: str, suite: Suite, limit: int | None = None, half: bool = False
) -> list[Prompt]:
    """A stage's prompts, tasks in turn; at most `limit`.

    whole: all questions. screen: three prompts a task, their first turn. trained: every eighth
    question of each task, or every sixteenth with `half`, first turns. Else every eighth question
    of each task, and our own.
    """
    if stage == "whole":
        return suite.round_robin()[:limit]
    own_prompts = () if stage == "trained" else own().prompts
    tasks: dict[str, list[Prompt]] = {}
    for prompt in suite.prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    every = 2 * EVERY if half else EVERY
    kept = [p for prompts in tasks.values() for p in prompts[::every]]
    both = replace(suite, prompts=(*kept, *own_prompts)).round_robin()
    if stage == "trained":
        return [replace(prompt, turns=prompt.turns[:1]) for prompt in both][:limit]
    return (_screened(both) if stage == "screen" else both)[:limit]


def _screened(prompts: Sequence[Prompt]) -> list[Prompt]:
    of_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        of_task.setdefault(prompt.task, []).append(replace(prompt, turns=prompt.turns[:1]))
    return [own[i] for i in SCREENED for own in of_task.values() if i < len(own)]


def tokens_to_read(prompts: Sequence[Prompt], answer: int) -> int:
    """About how many tokens are read, at four letters a token; later turns read earlier ones."""
    total = 0
    for prompt in prompts:
        before = 0
        for turn in prompt.turns:
            total += before + len(turn) // 4 + 30
            before += len(turn) // 4 + 30 + answer
    return total
