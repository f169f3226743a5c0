"""Trained prompt tokens: embeddings at which a frozen target predicts tokens ahead.

Shared by the drafters that train nothing else. Prompt token i, counted from 0, is i + 1 places
after a text that ends at place t, and the target's state there predicts the text's token t + 2 + i;
the token t + 1 is predicted at place t. Sources: Monea et al. 2023 (PaSS); Chen et al. 2024
(Parallel Prompt Decoding).

Legend: B rows, T places, R places with a block of prompt tokens, A prompt tokens, D width,
V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foretoken.trainable.appended import block_positions, blocks_loss, draw_places
from foretoken.trainable.checkpoint import Facts, Trained, VocabularyLayers
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective

FIRST = 2
"""How many places after the text's last token the first prompt token predicts."""


class PromptTokens(Trained):
    """Embeddings of prompt tokens, which begin as the text's mean embedding. num_tokens: how many;
    blocks: places of each row after which a training step puts them."""

    def __init__(self, facts: Facts, num_tokens: int = 3, blocks: int = 64) -> None:
        super().__init__(facts, num_tokens=num_tokens, blocks=blocks)
        self.embeddings = nn.Parameter(0.02 * torch.randn(num_tokens, facts.hidden_size))
        self._counts: Tensor | None = None

    def set_token_counts(self, counts: Tensor) -> None:
        self._counts = counts

    def copy_from(self, target: VocabularyLayers) -> None:
        if self._counts is None:
            return
        with torch.no_grad():
            share = (self._counts / self._counts.sum()).to(self.embeddings)
            present = share.nonzero()[:, 0]
            self.embeddings.copy_(share[present] @ target.embed(present))

    def states(self, lesson: Lesson, places: Tensor) -> Tensor:
        """[B, R, A, D] the target's states at the prompt tokens after the places [B, R]."""
        positions, mask = block_positions(lesson, places, len(self.embeddings))
        tokens = self.embeddings.repeat(places.shape[1], 1).expand(len(places), -1, -1)
        visible = mask(slice(lesson.tokens.shape[1], None))
        states: Tensor = lesson.append(tokens, positions, visible).unflatten(
            1, (places.shape[1], -1)
        )
        return states

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        places = draw_places(lesson, self.shape["blocks"], FIRST)
        states = self.states(lesson, places)
        return blocks_loss(lesson, places, states, FIRST, lesson.head, (), objective)
