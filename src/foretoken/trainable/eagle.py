"""EAGLE-1's weights and loss, which `eagle` and `eagle2` draft with.

Source: Li et al. 2024 (EAGLE), section 3, and its code for the noise, which is the less the longer
a text is. Weights are named as SafeAILab names them; embedding and head are the target's. A
training makes the layer like the target's; where the shape doesn't say it, heads are of about 48
and the feed-forward is 8/3 of the width.

Legend: B rows, T places, I unrolled steps, D width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.feature_layer import FeatureLayer
from foretoken.trainable.feature_module import FeatureModule
from foretoken.trainable.head_losses import heads_loss
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import FEATURE, Objective

_NOISE = 0.1 * 512  # largest noise on the features while training, times a text's length


class EagleModule(FeatureModule):
    """EAGLE-1's weights. heads, kv_heads, intermediate and `layer` (as in `LayerShape`): of its one
    decoder layer; bias: whether `fc` has one; unroll: steps that training takes on the layer's own
    outputs (the paper has 1)."""

    method: ClassVar[str] = "eagle"
    by_feature = True

    def __init__(
        self,
        facts: Facts,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        unroll: int = 1,
        bias: bool = True,
        **layer: Any,
    ) -> None:
        width = facts.hidden_size
        decoder = LayerShape.for_width(width, 1, heads, kv_heads, intermediate, **layer)
        super().__init__(
            facts,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            intermediate=decoder.intermediate,
            unroll=unroll,
            bias=bias,
            **layer,
        )
        self.layer_shape = decoder
        self.fc = nn.Linear(2 * width, width, bias=bias)
        self.layers = nn.ModuleList([FeatureLayer(decoder)])

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """[B, T, D] features and embeddings of the tokens after them -> [B, T, D]."""
        x = self.fc(torch.cat((following, features), -1))
        out: Tensor = self.layers[0](x, x, positions, attends[0])
        return out

    def outputs(self, lesson: Lesson, steps: int) -> Tensor:
        """[B, T, I, D], as `unroll` has it; in training from states with noise."""
        if self.training:
            noise = (2 * torch.rand_like(lesson.hidden[-1]) - 1) * _NOISE
            noise = noise / _lengths(lesson)[..., None]
            lesson = replace(lesson, hidden={-1: lesson.hidden[-1] + noise})
        return super().outputs(lesson, steps)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        outputs = self.outputs(lesson, self.shape["unroll"])
        loss = heads_loss(lesson, outputs, lesson.head, [], objective)
        weight = objective.weights.get(FEATURE, 0.0)
        return (
            loss + weight * self._feature_loss(lesson, outputs, objective.decay) if weight else loss
        )

    def _feature_loss(self, lesson: Lesson, outputs: Tensor, decay: float) -> Tensor:
        """Smooth L1 from each output to the state that it predicts, a mean over what counts.

        Step i of place t predicts the state of token t + 1 + i, which token t + 2 + i follows.
        """
        total, length = outputs.new_zeros(()), outputs.shape[1]
        for i in range(min(outputs.shape[2], length - 2)):
            goal = lesson.hidden[-1][:, 1 + i : length - 1]
            predicted = outputs[:, : length - 2 - i, i]
            inside = lesson.positions[:, 2 + i :] >= 2 + i
            loss = F.smooth_l1_loss(predicted, goal, reduction="none").mean(-1)
            total = total + decay**i * (loss * inside * lesson.weight[:, 2 + i :]).sum()
        return total / lesson.weight.sum().clamp(min=1e-9)


def _lengths(lesson: Lesson) -> Tensor:
    """[B, T] how many tokens each token's record has in its row."""
    record = lesson.records + 1  # 0 is padding
    counts = record.new_zeros(len(record), int(record.max()) + 1)
    counts.scatter_add_(1, record, torch.ones_like(record))
    return counts.gather(1, record)
