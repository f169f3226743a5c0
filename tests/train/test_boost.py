"""Drafters that learn what earlier ones miss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from foretoken.train.boost import EarlierDrafters
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM
from lessons import random_lesson
from trainings import train_small_lm

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
        earlier.token_acceptance(lesson)[:, :-1],
    )
    counted = lesson.weight[:, 1:] > 0
    assert torch.equal(weight[:, 1:][counted] == 0.25, right[counted] == 1)
    assert json.loads((tmp_path / "two" / "training.json").read_text())["after"]
