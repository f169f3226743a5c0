"""A tree from DFlash 2's one pass: the likeliest paths by its selector's scores.

A path's chance is the product of its tokens' chances, each among its place's candidates after the
token before it (`foretoken.trainable.selected_blocks`); the tree is that of `dflash_tree`, whose
places are independent.

Legend: B blocks, N predicted places, K candidates, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import ClassVar

from torch import Tensor

from foretoken.drafters.shared.block_tree import BlockTree
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.selected_blocks import SelectedModule
from foretoken.trees.best_first import Branches, best_first


class DFlash2Tree(BlockTree):
    """Options as `BlockTree` has them; top_k: how many of a place's candidates are tried."""

    module: ClassVar[type[BlockModule]] = SelectedModule

    def likeliest(
        self, module: BlockModule, states: Tensor, roots: Tensor, logits: Tensor, budgets: Seq[int]
    ) -> list[Branches]:
        assert isinstance(module, SelectedModule)
        chances, ids = module.transitions(states, logits, roots)
        rows = zip(chances.tolist(), ids.tolist(), budgets, strict=True)
        return [self._tree(*row) for row in rows]

    def _tree(
        self, chances: list[list[list[float]]], ids: list[list[int]], budget: int
    ) -> Branches:
        """The likeliest paths of one block, by chances [N, K, K] and ids [N, K] of candidates."""

        def following(at: tuple[int, int]) -> list[tuple[float, int, tuple[int, int]]]:
            place, before = at
            if place == len(ids):
                return []
            pairs = zip(chances[place][before], ids[place], strict=True)
            return [(p, token, (place + 1, i)) for i, (p, token) in enumerate(pairs)]

        most = min(self.tree_nodes, budget)
        return best_first((0, 0), following, most, width=self.top_k)
