"""The held-out prompts are served with what was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM, ForetokenError
from foretoken import llm as module
from foretoken.train.job import Setting
from foretoken.train.measure import measure
from foretoken.train.records import Records
from trainings import small_lm_job

NOTHING: dict[str, Any] = {"method": "pld"}


def setting(target: Path, out: Path, held: Records) -> Setting:
    """Only what `measure` reads."""
    unused: Any = None
    llm = LLM(str(target))
    return Setting(small_lm_job(target, out), llm, unused, unused, {}, held, "")


def test_every_held_out_prompt_is_served(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """As long as the recipe writes; texts without a prompt are left out."""
    held = Records.of([([5, 6], [7]), ([], [8, 9]), ([4], [3])], 4, 97)
    given = setting(checkpoints[0], tmp_path, held)
    stats = measure(given, given.llm.model, NOTHING)
    assert stats.tokens == 2 * given.job.recipe.max_tokens


def test_caches_are_as_long_as_the_recipes_texts(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as the model's context: a GPU has them whole."""
    made, engine = [], module.LLM.__init__
    monkeypatch.setattr(
        module.LLM,
        "__init__",
        lambda llm, *given, **more: made.append(more) or engine(llm, *given, **more),
    )
    given = setting(checkpoints[0], tmp_path, Records.of([([5, 6], [7])], 4, 97))
    measure(given, given.llm.model, NOTHING)
    assert made[-1].get("max_model_len") == given.job.recipe.length < given.llm.model.max_length
    longer = replace(given, held_out=Records.of([([5] * 60, [7])], 4, 97))
    measure(longer, given.llm.model, NOTHING)
    assert made[-1].get("max_model_len") == 60 + given.job.recipe.max_tokens


def test_a_prompt_that_cannot_be_served(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Its error ends the measurement."""
    held = Records.of([([5] * 5000, [7])], 4, 97)
    given = setting(checkpoints[0], tmp_path, held)
    with pytest.raises(ForetokenError, match="context"):
        measure(given, given.llm.model, NOTHING)
