"""Trains a drafter on what earlier drafters missed (collective boost-tuning).

Source: Miao et al. 2024 (SpecInfer), section 3 (merge-based trees). There the next drafter learns
from the texts of which an earlier one misses any part; here each token is weighted by the chance
that all of them miss it. Tokens that none misses keep a small weight, as drafts continue after
them.

Legend: B rows, T places, N drafted places.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from foretoken.drafters.small_lm import SmallLM
from foretoken.train.job import Setting
from foretoken.train.loop import Acceptance
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.small_lm import TrainedLM


class EarlierDrafters:
    """The drafters that were trained before. known: weight of a token that they never miss."""

    def __init__(self, models: Seq[TrainedLM], known: float) -> None:
        self._models = [model.eval().requires_grad_(False) for model in models]
        self._known = known

    @classmethod
    def load(cls, setting: Setting) -> EarlierDrafters:
        """The drafters of the checkpoints that the job names."""
        models = [
            TrainedLM.from_shape(setting.facts, {"model": str(folder)}, str(folder))
            for folder in setting.job.after
        ]
        device = setting.model.device
        return cls([model.to(device) for model in models], setting.job.recipe.known)

    @torch.no_grad()
    def weigh(self, lesson: Lesson) -> Tensor:
        """[B, T] the new weights of a lesson's tokens."""
        missed = torch.ones_like(lesson.weight)
        for model in self._models:
            missed[:, 1:] *= 1 - model.token_acceptance(lesson)[:, :-1]
        return lesson.weight * (self._known + (1 - self._known) * missed)

    def together(self, drafter: SmallLM) -> Acceptance:
        """The estimate of the merged tree of all chains, each as long as the drafter's: that of the
        best chain, which is exact at temperature 0 and too low above it."""

        def best(module: Any, lesson: Lesson) -> Tensor:
            each = [drafter.acceptance(model, lesson) for model in (module, *self._models)]
            return torch.stack(each).amax(0)

        return best
