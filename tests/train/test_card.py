"""Cards show what was estimated next to what was served."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken.engine.stats import AcceptanceStats
from foretoken.train.card import loops, noted, recipe_lines, table, write_card
from foretoken.train.job import Job, Outcome, Progress
from foretoken.train.recipe import Recipe
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Estimate


def test_the_table() -> None:
    """A row each for estimate and engine, with the share of steps that accepted each place."""
    served = AcceptanceStats(tokens=30, passes=20, accepted_at=[8, 2])
    lines = table(Estimate(30.0, 20.0, [9.0, 3.0]), served)
    assert lines[0].endswith("| place 1 | place 2 |") and len(lines) == 4
    assert "| estimated | 1.500 | 0.450 | 0.150 |" in lines
    assert lines[3].endswith("| 0.400 | 0.100 |")


def test_a_table_of_what_was_not_served() -> None:
    """It has the estimate alone."""
    lines = table(Estimate(30.0, 20.0, [9.0, 3.0]), None)
    assert lines[-1] == "| estimated | 1.500 | 0.450 | 0.150 |" and len(lines) == 3


def test_when_where_and_of_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card says on what machine its numbers were measured, by the GPU where it was one, and
    whether loops are in them."""
    said = noted(torch.device("cpu"))
    assert re.fullmatch(r"\*Noted in [A-Z]\w+ \d{4} on \d+ cores of .+\.\*", said)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {device.index}")
    said = noted(torch.device("cuda:1"))
    assert re.fullmatch(r"\*Noted in [A-Z]\w+ \d{4} on one NVIDIA 1\.\*", said)
    assert loops(Recipe(distinct=0.0)) == "Answers that loop are in both."
    assert "left out" in loops(Recipe(distinct=0.8))
    assert loops(Recipe(distinct=0.0), "it") == "Answers that loop are in it."


def test_a_recipe_as_it_is_written() -> None:
    """Every setting on a line of its own, tuples as lists."""
    lines = recipe_lines(Recipe(lr=0.5))
    assert "    lr: 0.5" in lines and "    betas:" in lines


def card(job: Job) -> str:
    """That of a checkpoint after seven steps, which another method can serve too."""
    weights = [torch.zeros(1_000_000), torch.zeros(260_000)]
    given = {"method": "eagle", "facts": Facts(32, 97, 2), "parameters": lambda: iter(weights)}
    module: Any = SimpleNamespace(**given)
    served = AcceptanceStats(tokens=30, passes=20, accepted_at=[8, 2])
    outcome = Outcome(Progress(step=7, best=1.4), Estimate(40.0, 20.0, [9.0, 3.0]), served)
    write_card(job, module, "9 records", outcome)
    return (job.out / "README.md").read_text()


def test_a_whole_card(tmp_path: Path) -> None:
    """What it is of, how to load it, what it learned from for how long, and what it accepts."""
    job = Job("eagle2", "mini", (), Recipe(lr=0.5), tmp_path / "mine")
    found = card(job)
    assert found.startswith("# eagle2 for mini\n") and "1.3 M parameters" in found
    assert "(width 32, vocabulary 97, 2 layers) by `foretoken train eagle2`." in found
    loading = 'speculative_config={"method": "eagle2", "model": "mine"})'
    assert f'    LLM("mini", {loading}' in found
    assert "Text: 9 records. It was trained for 7 steps. *Noted in " in found
    assert "| estimated | 2.000 | 0.450 |" in found and "| served | 1.500 | 0.400 |" in found
    assert "same prompts. Answers that loop, by the recipe's `distinct`, are left" in found
    assert "The licences of `mini`" in found and "    lr: 0.5\n" in found
    own = card(replace(job, trust_remote_code=True, recipe=Recipe(distinct=0.0)))
    assert f'    LLM("mini", trust_remote_code=True, {loading}' in own
    assert "Answers that loop are in both." in own
    shared = card(replace(job, shard_target=True))
    assert "| served |" not in shared and "accepts. Answers that loop, by" in shared
    fixed = card(replace(job, shard_target=True, source="fixed"))
    assert "held-out answers of the file, those that loop among them; nothing was served" in fixed
