"""Chains of a block that is predicted in one pass, by DFlash's module or one with a selector.

Legend: B rows, T places, N predicted places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ChainDrafter
from foretoken.drafters.shared.depth import draft_depth
from foretoken.errors.values import check_range
from foretoken.length import Fixed
from foretoken.trainable.block_layers import BlockModel, BlockModule
from foretoken.trainable.lesson import Lesson, drawn_acceptance
from foretoken.trainable.narrow import loaded
from foretoken.trainable.rank_trees import tree_acceptance
from foretoken.tree import MOST_NODES


@dataclass(eq=False)
class BlockChain(ChainDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: fewer places
    than the checkpoint predicts."""

    model: Any = None
    num_speculative_tokens: int | None = None

    module: ClassVar[type[BlockModule]]
    wants = Wants("acd", (-1,))  # the layers follow from the checkpoint

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        self.module.check_source(self.model)

    def bind(self, access: Access) -> None:
        module: BlockModule = loaded(self.module, self.model, access)
        self.length = Fixed(self._length(module))
        self._lm: BlockModel = module.serving(access)
        self.wants = replace(self.wants, hidden=module.reads)

    def _length(self, module: BlockModule) -> int:
        most = module.places
        return draft_depth(
            self.num_speculative_tokens, most, f"the checkpoint predicts {most} places"
        )

    def acceptance(self, module: BlockModule, lesson: Lesson) -> Tensor:
        """[B, T, N] the chance that a step whose root is there accepts more than n places."""
        length = self._length(module)
        if lesson.temperature:
            return drawn_acceptance(module.chances(lesson)[..., :length], lesson.max_nodes)
        chain = [(0,) * (n + 1) for n in range(length)]
        return tree_acceptance(module.ranks(lesson), lesson.max_nodes, chain)
