"""EAGLE-2: EAGLE's weights, and a tree that grows where the drafter is sure of itself.

Source: Li et al. 2024 (EAGLE-2), section 4: at each level the `top_k` likeliest paths are drafted
further, and of all nodes those of the likeliest paths are scored. The paper's defaults: 5 passes
after the first (6 levels), 10 paths, 59 nodes. Checkpoints are those of `eagle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.drafters.shared.feature_trees import FeatureDrafter, LikeliestPaths
from foretoken.errors.values import check_range
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.eagle import EagleModule
from foretoken.tree import MOST_NODES


@dataclass(eq=False)
class Eagle2(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; depth: levels of the tree; top_k: paths
    that each level continues, and children of each; tree_nodes: nodes that are kept, those of the
    likeliest paths."""

    depth: int = 6
    top_k: int = 10
    tree_nodes: int = 59

    module: ClassVar[type[Trained]] = EagleModule
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, depth=self.depth, top_k=self.top_k, tree_nodes=self.tree_nodes)
        super().__post_init__()
        self.tree_builder = LikeliestPaths(self.depth, self.top_k, self.tree_nodes)
