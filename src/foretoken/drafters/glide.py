"""GliDe: a small decoder layer, which also reads the target's cache, drafts a chain.

Source: Du et al. 2024 (GliDe with a CaPE), section 3.1. Module and departures:
`foretoken.trainable.cross_attention`; `glide_cape` widens its drafts.

Legend: B rows, T places, N drafted places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ChainDrafter
from foretoken.length import Fixed
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.cross_attention import CrossAttentionModel, CrossAttentionModule
from foretoken.trainable.head_losses import chances_at_roots, ranks_at_roots
from foretoken.trainable.lesson import Lesson, drawn_acceptance
from foretoken.trainable.rank_trees import tree_acceptance


@dataclass(eq=False)
class Glide(ChainDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: draft
    length."""

    model: Any = None
    num_speculative_tokens: int = 5

    module: ClassVar[type[Trained]] = CrossAttentionModule
    wants = Wants("acf")

    def __post_init__(self) -> None:
        CrossAttentionModule.check_source(self.model)
        self.length = Fixed(self.num_speculative_tokens)

    def bind(self, access: Access) -> None:
        module = CrossAttentionModule.load(self.model, access)
        self._lm = CrossAttentionModel(module, access, self.nodes)

    def acceptance(self, module: CrossAttentionModule, lesson: Lesson) -> Tensor:
        """[B, T, N] the chance that a step whose root is there accepts more than n places."""
        states = module.states(lesson, self.num_speculative_tokens)
        if lesson.temperature:
            chances = chances_at_roots(lesson, states, lambda x, _: lesson.head(x))
            return drawn_acceptance(chances, lesson.max_nodes)
        chain = [(0,) * (n + 1) for n in range(self.num_speculative_tokens)]
        ranks = ranks_at_roots(lesson, states, lambda x, _: lesson.head(x))
        return tree_acceptance(ranks, lesson.max_nodes, chain)
