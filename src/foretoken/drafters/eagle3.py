"""EAGLE-3: a layer on states from three depths of the target, trained on its own outputs.

Source: Li et al. 2025 (EAGLE-3), section 3. Drafts are EAGLE-2's trees. Module, training and
departures: `foretoken.trainable.eagle3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from foretoken.access import Access, Wants
from foretoken.drafters.shared.feature_trees import FeatureDrafter, LikeliestPaths
from foretoken.errors.values import check_range
from foretoken.trainable.checkpoint import Trained, read_config
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.trainable.formats import find
from foretoken.tree import MOST_NODES


@dataclass(eq=False)
class Eagle3(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; depth: levels of the tree; top_k: paths
    that each level continues, and children of each; tree_nodes: nodes that are kept, those of the
    likeliest paths."""

    depth: int = 6
    top_k: int = 10
    tree_nodes: int = 59

    module: ClassVar[type[Trained]] = Eagle3Module
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, depth=self.depth, top_k=self.top_k, tree_nodes=self.tree_nodes)
        super().__post_init__()
        self.tree_builder = LikeliestPaths(self.depth, self.top_k, self.tree_nodes)
        loaded = isinstance(self.model, Eagle3Module)
        self._request(self.model.shape if loaded else read_config(find(self.model))["shape"])

    def bind(self, access: Access) -> None:
        super().bind(access)
        self._request(self._module.shape)

    def _request(self, shape: Mapping[str, Any]) -> None:
        """Request the captured layers' states; in some checkpoints they follow from the target's
        depth, and are known after `bind` only."""
        self.wants = Wants("bc", tuple(dict.fromkeys(shape.get("capture", (-1,)))))
