"""Writes a checkpoint's README.md: what it is, how it was made, what it accepts."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import torch
import yaml

from foretoken.engine.stats import AcceptanceStats
from foretoken.files import write_file
from foretoken.machine import cores, processor
from foretoken.train.job import Job, Outcome
from foretoken.train.recipe import Recipe
from foretoken.train.sources import FIXED, estimated_on
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Estimate


def write_card(job: Job, module: Trained, text: str, outcome: Outcome) -> None:
    """README.md of the checkpoint's folder; text: what it was trained on."""
    served = None if job.shard_target else outcome.served
    parameters = sum(weight.numel() for weight in module.parameters())
    target = job.target
    code = "trust_remote_code=True, " if job.trust_remote_code else ""
    lines = [
        f"# {job.method} for {target}",
        "",
        f"A drafter for speculative decoding, {parameters / 1e6:.1f} M parameters, trained for "
        f"`{target}` (width {module.facts.hidden_size}, vocabulary {module.facts.vocab_size}, "
        f"{module.facts.layers} layers) by `foretoken train {job.method}`.",
        "",
        f'    LLM("{target}", {code}speculative_config={{"method": "{job.method}", '
        f'"model": "{job.name}"}})',
        "",
        f"Text: {text}. It was trained for {outcome.progress.step} steps. "
        f"{noted(next(module.parameters()).device)}",
        "",
        *table(outcome.expected, served),
        "",
        _measured(job),
        "",
        *licence_lines(target),
        "",
        "## Recipe",
        "",
        *recipe_lines(job.recipe),
        "",
    ]
    write_file(job.out / "README.md", "\n".join(lines))


def noted(device: torch.device) -> str:
    """When and on what a card's numbers were measured. device: the training's."""
    if device.type == "cuda":
        machine = f"one {torch.cuda.get_device_name(device)}"
    else:
        machine = f"{cores()} cores of {processor()}"
    return f"*Noted in {datetime.now(UTC):%B %Y} on {machine}.*"


def _measured(job: Job) -> str:
    """Where a card's numbers come from."""
    said = "The estimate comes from one pass over the held-out answers"
    if not job.shard_target:
        served = "what was served is the engine's own count on the same prompts"
        return f"{said}; {served}. {loops(job.recipe)}"
    none = (
        "nothing was served, as the target was shared out over several processes: `foretoken "
        "bench` counts what serving accepts"
    )
    if estimated_on(job) == FIXED:
        return f"{said} of the file, those that loop among them; {none}."
    return f"{said}; {none}. {loops(job.recipe, 'it')}"


def loops(recipe: Recipe, of: str = "both") -> str:
    """Whether answers that loop, which are easily drafted, are in a card's numbers. of: these."""
    if recipe.distinct == 0:
        return f"Answers that loop are in {of}."
    return f"Answers that loop, by the recipe's `distinct`, are left out of {of}."


def licence_lines(target: str) -> list[str]:
    """The section on licences, which only the checkpoint's owner knows."""
    return [
        "## Licence",
        "",
        f"Not stated. The licences of `{target}` and of the text may set terms for what was made "
        "from them; name this checkpoint's licence and its sources here before it is shared.",
    ]


def table(expected: Estimate, served: AcceptanceStats | None) -> list[str]:
    """Acceptance length, and the share of steps that accepted each drafted place. served: None
    where nothing was."""
    columns = ["", "acceptance length", *(f"place {n + 1}" for n in range(len(expected.rates)))]
    rows = [("estimated", expected.acceptance_length, expected.rates)]
    if served is not None:
        shares = [n / served.passes for n in served.accepted_at[: len(expected.rates)]]
        rows.append(("served", served.mean_acceptance_length, shares))
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|--:" * (len(columns) - 1) + "|"]
    for name, length, rates in rows:
        cells = [name, f"{length:.3f}", *(f"{rate:.3f}" for rate in rates)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def recipe_lines(recipe: Recipe) -> list[str]:
    """The recipe as YAML, indented as a block of code."""
    plain = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(recipe).items()
    }
    return ["    " + line for line in yaml.safe_dump(plain, sort_keys=False).splitlines()]
