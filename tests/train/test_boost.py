"""Drafters that learn what earlier ones miss."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.models.load import load_model
from foretoken.train import drafter
from foretoken.train.boost import EarlierDrafters
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM
from foretoken.verify.multi_candidate import MultiCandidate
from lessons import check_expectation, everywhere, random_lesson
from trainings import small_lm_job, train_small_lm

pytest.importorskip("accelerate")


def test_a_pair(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The second learns what the first misses; both are served in one tree, as estimated."""
    first, _ = train_small_lm(checkpoints[0], tmp_path / "one")
    second, _ = train_small_lm(checkpoints[0], tmp_path / "two", after=[tmp_path / "one"])
    expected, served = second.expected.acceptance_length, second.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=0.05)
    assert expected >= first.expected.acceptance_length
    lesson = random_lesson(checkpoints[0], 0.0)
    earlier = TrainedLM(Facts(0, 97, 0), model=str(tmp_path / "one"))
    weight, right = (
        EarlierDrafters([earlier], 0.25).weigh(lesson),
        earlier.token_acceptance(lesson, everywhere(lesson))[:, :-1],
    )
    counted = lesson.weight[:, 1:] > 0
    assert torch.equal(weight[:, 1:][counted] == 0.25, right[counted] == 1)
    assert json.loads((tmp_path / "two" / "training.json").read_text())["after"]


def test_how_a_pair_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one tree of chains, with the precision that the recipe serves small models in."""
    job = small_lm_job(tmp_path, tmp_path / "two", serving={"draft_backend": "q8"})
    job = dataclasses.replace(job, after=(tmp_path / "one",))
    monkeypatch.setattr(drafter, "measure", lambda setting, model, config: config)
    monkeypatch.setattr(
        drafter, "_drafter_of", lambda *given: SimpleNamespace(num_speculative_tokens=3)
    )
    setting = SimpleNamespace(job=job, llm=SimpleNamespace(model=None))
    subject: Any = SimpleNamespace(_setting=setting, _class=drafter.trainable("sps"))
    nothing: Any = None
    served: Any = drafter.DrafterTraining.serve(subject, nothing)
    folders = [tmp_path / "one", tmp_path / "two"]
    assert served == {**drafter.merged(folders, 3), "draft_backend": "q8"}


def test_the_expectation_of_pairs(checkpoints: tuple[Path, Path]) -> None:
    """Above temperature 0 a second chain is tried where the first one's token is rejected."""
    target = load_model(checkpoints[0], backend="plain")
    first, second = (TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1])) for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in first.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    served = [first.native(), second.native()]
    chain = SmallLM(second, num_speculative_tokens=3)
    together = EarlierDrafters([first], 0.3).together(chain)
    check_expectation(
        SmallTree(models=served, widths=(1, 1, 1), replacement=True),
        second,
        target,
        MultiCandidate(),
        SimpleNamespace(acceptance=together),
    )


def test_what_several_know(checkpoints: tuple[Path, Path]) -> None:
    """A token counts by the chance that all of them miss it, as far as that is from `known`; a
    text's first token is predicted by none."""
    lesson = random_lesson(checkpoints[0], 0.8)
    lesson = dataclasses.replace(lesson, weight=torch.where(lesson.weight > 0, 1.0, 0.5))
    models = [TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1])) for _ in range(2)]
    with torch.no_grad():
        for weight in models[1].parameters():
            weight.mul_(0.9)
        missed = [1 - model.token_acceptance(lesson, everywhere(lesson)) for model in models]
    found = EarlierDrafters(models, 0.25).weigh(lesson)
    assert 0 < missed[0][0, 5] < 1 and not torch.equal(*missed)
    for row in range(2):
        for place in range(40):
            both = missed[0][row, place - 1] * missed[1][row, place - 1] if place else 1.0
            expected = lesson.weight[row, place] * (0.25 + 0.75 * both)
            assert float(found[row, place]) == pytest.approx(float(expected), rel=1e-5)


def test_the_best_chain_counts_at_temperature_0(checkpoints: tuple[Path, Path]) -> None:
    lesson = random_lesson(checkpoints[0], 0.0)
    models = [TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1])) for _ in range(2)]
    with torch.no_grad():
        for weight in models[1].parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        chain = SmallLM(models[1], num_speculative_tokens=3)
        each = [chain.acceptance(model, lesson) for model in models]
        found = EarlierDrafters(models[:1], 0.3).together(chain)(models[1], lesson)
    assert not torch.equal(*each) and torch.equal(found, torch.maximum(*each))
