"""Computes a measurement's results.json from its answers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.bench.measure import metrics
from foretoken.bench.measure.environment import environment
from foretoken.bench.measure.ideal import add_ideals
from foretoken.bench.plan import TUNED, Plan
from foretoken.bench.record import SCHEMA, Answer, Results, Target
from foretoken.bench.suites.suite import Suite


def summarize(
    answers: Seq[Answer],
    *,
    plan: Plan,
    suite: Suite,
    target: Target,
    skipped: Seq[str] = (),
    costs: Mapping[str, Any] | None = None,
    not_run: Mapping[str, str] | None = None,
) -> Results:
    """The results of one target's answers, measured on this machine."""
    results: Results = {
        "schema": SCHEMA,
        "environment": environment(),
        "target": target,
        "suite": {
            "name": suite.name,
            "sha256": suite.sha256,
            "prompts": 0,
            "turns": 0,
            "max_tokens": plan.max_tokens,
            "distinct_4_threshold": plan.distinct_4,
            "left_out": [],
            "skipped": list(skipped),
            "history": "own" if plan.own_history else "autoregressive",
            "warm": plan.warm,
        },
        "costs": costs,
        "runs": [],
    }
    if not_run:
        results["not_run"] = dict(not_run)
    if tuned := {k: dict(own) for k, own in plan.methods.items() if k.startswith(TUNED)}:
        results["tuned"] = tuned
    fill_in(results, answers, suite, plan.repeats)
    return results


def fill_in(results: Results, answers: Seq[Answer], suite: Suite, repeats: int) -> None:
    """Compute everything in `results` that follows from the answers."""
    # Which prompts loop is decided once: by plain decoding at the first temperature and batch
    # size, whose answers come first (or by a server's, measured without plain decoding).
    first = [a for a in answers if _setting(a) == _setting(answers[0])]
    left_out = metrics.looping(first, results["suite"]["distinct_4_threshold"])
    results["suite"] |= {
        "prompts": len({a.id for a in answers}),
        "turns": len({(a.id, a.turn) for a in answers}),
        "left_out": left_out,
    }
    references = {
        (prompt.id, turn): right
        for prompt in suite.prompts
        for turn, right in enumerate(prompt.reference)
        if right
    }
    results["runs"] = metrics.runs(answers, left_out, repeats=repeats, references=references)
    add_ideals(results)


def _setting(answer: Answer) -> tuple[str, int, float]:
    return answer.method, answer.batch_size, answer.temperature
