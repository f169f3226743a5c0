"""Trains a drafter on what earlier drafters missed (collective boost-tuning).

Source: Miao et al. 2024 (SpecInfer), section 3 (merge-based trees). There the next drafter learns
from the texts of which an earlier one misses any part; here each token is weighted by the chance
that all of them miss it. Tokens that none misses keep a small weight, as drafts continue after
them.

Legend: B rows, T places, N drafted places, K drafters.
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
from foretoken.trainable.losses import chances_in_turn
from foretoken.trainable.small_lm import TrainedLM

_CHUNK = 128  # roots whose distributions of all drafters exist at once


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
        before = lesson.weight.roll(-1, 1) > 0  # the tokens that count; the last place is left out
        for model in self._models:
            missed[:, 1:] *= 1 - model.token_acceptance(lesson, before)[:, :-1]
        return lesson.weight * (self._known + (1 - self._known) * missed)

    def together(self, drafter: SmallLM) -> Acceptance:
        """The estimate of the tree of all chains, each as long as the drafter's: at temperature 0
        that of the best chain, above it what is accepted of the first chain, or of the next ones
        where those before are rejected."""

        def best(module: Any, lesson: Lesson) -> Tensor:
            models = (*self._models, module)  # in the order in which they are served
            each = [drafter.acceptance(model, lesson) for model in models]
            if not lesson.temperature:
                return torch.stack(each).amax(0)
            return _in_turn(each, _first_accepted(models, lesson), lesson.max_nodes)

        return best


def _in_turn(each: Seq[Tensor], first: Tensor, max_nodes: Tensor) -> Tensor:
    """[B, T, N] the chance that more than n places are accepted of chains that are tried one after
    the other. each: [B, T, N] of each chain alone; first: [B, T, K] the chance that it is the one
    whose first place is accepted. A budget is used up by the first chains."""
    places, total = torch.arange(each[0].shape[2], device=first.device), torch.zeros_like(each[0])
    for number, own in enumerate(each):
        later = torch.cat((torch.ones_like(own[..., :1]), own.roll(-1, 1)[..., :-1]), 2)
        within = places + number * len(places) < max_nodes[..., None]
        total += first[..., number, None] * later * within
    return total


def _first_accepted(models: Seq[TrainedLM], lesson: Lesson) -> Tensor:
    """[B, T, K] the chance that each drafter's token after a root is the first to be accepted, and
    is the text's."""
    states = [model.states(lesson) for model in models]
    found = lesson.hidden[-1].new_zeros(*lesson.tokens.shape, len(models))
    row, root = (lesson.max_nodes > 0).nonzero(as_tuple=True)
    for r, t in zip(row.split(_CHUNK), root.split(_CHUNK), strict=True):
        logits = [model.head(own[r, t]) for model, own in zip(models, states, strict=True)]
        target, goal = lesson.head(lesson.hidden[-1][r, t]), lesson.tokens[r, t + 1]
        found[r, t] = chances_in_turn(logits, target, goal, lesson.temperature).to(found.dtype)
    return found
