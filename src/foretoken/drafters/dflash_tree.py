"""A tree from DFlash's one pass: the likeliest paths, taking a block's places as independent.

Source: the trees drawn from DFlash's distributions in DDTree (2026). A path's chance is the product
of its tokens' chances, each by the distribution of its place alone. Checkpoints are those of
`dflash`.

Legend: B blocks, N predicted places, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import ClassVar

from torch import Tensor

from foretoken.drafters.shared.block_tree import BlockTree
from foretoken.trainable.block_layers import BlockModule
from foretoken.trees.best_first import Branches, best_first


class DFlashTree(BlockTree):
    """Options as `BlockTree` has them."""

    module: ClassVar[type[BlockModule]] = BlockModule

    def likeliest(
        self, module: BlockModule, states: Tensor, roots: Tensor, logits: Tensor, budgets: Seq[int]
    ) -> list[Branches]:
        """The tree of each block with states [B, N, D], roots [B] and logits [B, N, V], of so many
        nodes."""
        top = logits.softmax(-1).topk(min(self.top_k, logits.shape[-1]))
        rows = zip(top.values.tolist(), top.indices.tolist(), budgets, strict=True)
        return [
            _tree(distributions, ids, min(self.tree_nodes, budget))
            for distributions, ids, budget in rows
        ]


def _tree(distributions: Seq[Seq[float]], ids: Seq[Seq[int]], nodes: int) -> Branches:
    """The likeliest `nodes` nodes where distributions[i] [K] are the chances of tokens ids[i] at
    place i."""

    def following(place: int) -> list[tuple[float, int, int]]:
        if place == len(distributions):
            return []
        return [
            (p, token, place + 1) for p, token in zip(distributions[place], ids[place], strict=True)
        ]

    return best_first(0, following, nodes)
