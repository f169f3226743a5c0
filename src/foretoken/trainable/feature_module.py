"""A module around one decoder layer that predicts a target's next states.

Sources: Li et al. 2024 (EAGLE), section 3; Cai et al. 2025 (FastMTP), section 3 (steps on its own
outputs). Embedding and head are the target's.

Legend: B rows, T places, I unrolled steps, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import ClassVar

from torch import Tensor

from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.feature_layer import unroll
from foretoken.trainable.head_losses import (
    heads_loss,
    ranks_at_roots,
    sibling_chances_at_roots,
)
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective


class FeatureModule(Trained):
    """A module around one decoder layer; subclasses implement `predict`. `unroll` in its shape: how
    many steps training takes on the layer's own outputs."""

    layer_shape: LayerShape
    decoder_layers: ClassVar[int] = 1
    like_target = True
    by_reach = True

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """The target's normed last states."""
        return hidden[-1]

    def predict(
        self, features: Tensor, following: Tensor, positions: Tensor, attends: Seq[Attend]
    ) -> Tensor:
        """[B, T, D] features and embeddings of the tokens after them -> [B, T, D]; attends: of its
        one layer."""
        raise NotImplementedError

    def logits(self, outputs: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] -> logits [..., V]."""
        return head(outputs)

    def outputs(self, lesson: Lesson, steps: int) -> Tensor:
        """[B, T, I, D], as `unroll` has it."""
        features = self.features(lesson.hidden)
        following = lesson.embed(lesson.tokens).to(features.dtype)
        return unroll(self, features, following, lesson, steps)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        outputs = self.outputs(lesson, self.shape["unroll"])
        return heads_loss(lesson, outputs, lesson.head, [], objective)

    def chances(self, lesson: Lesson, depth: int, siblings: int) -> Tensor:
        """[B, T, depth, siblings], as `sibling_chances_at_roots` has it."""
        outputs = self.outputs(lesson, depth)
        return sibling_chances_at_roots(lesson, outputs, lambda x, _: lesson.head(x), siblings)

    def ranks(self, lesson: Lesson, depth: int) -> Tensor:
        """[B, T, depth], as `ranks_at_roots` has it."""
        return ranks_at_roots(lesson, self.outputs(lesson, depth), lambda x, _: lesson.head(x))
