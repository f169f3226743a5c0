"""EAGLE-2: EAGLE's weights, and a tree that grows where the drafter is sure of itself.

Source: Li et al. 2024 (EAGLE-2), section 4: at each level the `top_k` likeliest paths are drafted
further, and of all nodes those of the likeliest paths are scored. The paper's defaults: 5 passes
after the first (6 levels), 10 paths, 59 nodes. Checkpoints are those of `eagle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.drafters.shared.feature_trees import GrownTree
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.eagle import EagleModule


@dataclass(eq=False)
class Eagle2(GrownTree):
    """Options: see `GrownTree`."""

    module: ClassVar[type[Trained]] = EagleModule
