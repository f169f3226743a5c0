"""EAGLE: a decoder layer predicts the target's next state, and so the next token, in a tree.

Source: Li et al. 2024 (EAGLE), sections 3.1 and 3.2 and appendix A (the tree of 25 nodes). The
layer reads the target's normed last state of each token and the embedding of the token after it;
while drafting it reads its own outputs as states. At temperature 0 a node's children are the
likeliest tokens, above it they are drawn without replacement. Departure: there a greedy sequence
in a batch with sampled ones gets the same tree; here it gets a chain.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar

from foretoken.drafters.shared.depth import draft_depth
from foretoken.drafters.shared.feature_trees import FeatureDrafter, GivenTree
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.eagle import EagleModule
from foretoken.tree import Kind

_TREE = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
TREE = tuple(tuple(map(int, path)) for path in _TREE.split())
"""The paper's static tree."""


@dataclass(eq=False)
class Eagle(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree: rank paths, each with all its
    earlier siblings and its parent (a chain: [[0], [0, 0], [0, 0, 0]]); num_speculative_tokens:
    fewer levels than the tree has."""

    tree: Seq[Seq[int]] = TREE
    num_speculative_tokens: int | None = None

    module: ClassVar[type[Trained]] = EagleModule
    kinds = frozenset({Kind.WITHOUT_REPLACEMENT})

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = max(map(len, self.tree), default=0)
        most = draft_depth(self.num_speculative_tokens, levels, f"the tree has {levels} levels")
        builder = GivenTree([path for path in self.tree if len(path) <= most])
        self.tree_builder, self.trees = builder, builder.branches
