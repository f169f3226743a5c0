"""Drafters that predict with the target's head, or with one of their own that knows a part of its
tokens (see `models/reduced_vocabulary.py`).

Legend: D width, V vocabulary, R reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from foretoken.models.reduced_vocabulary import choose, ids_of, offsets, spread
from foretoken.trainable.checkpoint import Trained, VocabularyLayers, weight_of
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.reduced_objective import ReducedObjective


class Headed(Trained):
    """A module with `draft_vocab_size` in its shape: tokens of a head of its own, or None; its
    `__init__` calls `make_head`."""

    lm_head: nn.Linear | None
    d2t: Tensor
    t2d: Tensor

    def make_head(self) -> None:
        """A head of its own, if the shape has one."""
        size, facts = self.shape["draft_vocab_size"], self.facts
        self.lm_head = None
        if size is not None:
            self.lm_head = nn.Linear(facts.hidden_size, size, bias=False)
            for name, numbers in zip(("d2t", "t2d"), offsets(size, facts.vocab_size), strict=True):
                self.register_buffer(name, numbers)

    @property
    def ids(self) -> Tensor:
        """[R] the target's id of each token of its own head."""
        return ids_of(self.d2t)

    def set_token_counts(self, counts: Tensor) -> None:
        """Choose the head's tokens: the most frequent ones of the training text."""
        if self.lm_head is not None:
            choose(self.d2t, self.t2d, counts)

    def copy_from(self, target: VocabularyLayers) -> None:
        """A head of its own begins as the target's."""
        if self.lm_head is not None:
            own, width = self.lm_head.weight, self.facts.hidden_size
            with torch.no_grad():
                own.copy_(weight_of(target, width, own)[self.ids])

    def head_logits(self, states: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., D] as a head reads them -> logits [..., V], -inf for tokens that a head of its own
        lacks; head: the target's."""
        if self.lm_head is None:
            return head(states)
        return spread(self.lm_head(states), self.ids, self.facts.vocab_size)

    def learning(self, lesson: Lesson) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
        """The head that it predicts with, and the weights of it that are trained."""
        if self.lm_head is None:
            return lesson.head, []
        return self.lm_head, list(self.lm_head.parameters())

    def own_objective(self, objective: Objective) -> Objective:
        """The objective over the tokens that its head knows."""
        if self.lm_head is None:
            return objective
        return ReducedObjective(**vars(objective), ids=self.ids, covered=self.t2d)


def head_size(asked: int | None, vocab_size: int) -> int | None:
    """`draft_vocab_size` of a shape: no more than the target's tokens."""
    return None if asked is None else min(asked, vocab_size)
