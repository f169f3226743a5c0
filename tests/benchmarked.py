"""A small suite, and a plan of methods on the tiny target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretoken.bench.plan import (
    Plan,
    Unit,
)
from foretoken.bench.run.runner import Runner
from foretoken.bench.suites.suite import Prompt, Suite

Pair = tuple[Path, Path]

SUITE = Suite(
    "some",
    "0" * 64,
    (
        Prompt("chat-1", "chat", ("Hello there.", "And then?")),
        Prompt("qa-1", "qa", ("Who wrote it?",), reference=(("Nobody",),)),
        Prompt("qa-2", "qa", ("What is it?",)),
        Prompt("chat-2", "chat", ("Good evening, sir.", "Why?")),
        Prompt("qa-3", "qa", ("When was that? Tell me the year.",)),
    ),
)


def plan(checkpoints: Pair, **given: Any) -> Plan:
    """Prompt lookup and a small model on the tiny target."""
    target, draft = map(str, checkpoints)
    methods = {"pld": {"method": "pld"}, "sps": {"method": "sps", "model": draft}}
    settings: dict[str, Any] = {
        "model": target,
        "name": "tiny",
        "methods": methods,
        "max_tokens": 12,
        **given,
    }
    return Plan(**settings)


def unit(*prompts: Prompt, size: int = 1, temperature: float = 0.0) -> Unit:
    return Unit(prompts, size, temperature)


CHATS = tuple(p for p in SUITE.prompts if p.task == "chat")


class Breaks:
    """Stands in for a method's `generate` and fails for one prompt."""

    def __init__(self, runner: Runner, label: str, times: int = 1) -> None:
        self.inner, self.left = runner.llms[label].generate, times
        runner.llms[label].generate = self  # type: ignore[method-assign, assignment]

    def __call__(self, prompts: Any, *rest: Any) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("no memory left")
        return self.inner(prompts, *rest)
