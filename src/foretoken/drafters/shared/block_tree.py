"""Trees of a block that is predicted in one pass: the likeliest paths, as a drafter weighs them.

Source: the trees drawn from DFlash's distributions in DDTree (2026). The `tree_nodes` likeliest
paths' nodes are scored, found best first. Departure: at most `top_k` tokens of a place are tried.

Legend: B sequences, T places of a text, N predicted places, C roots, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import WithModel
from foretoken.drafters.shared.depth import draft_depth
from foretoken.draws import Draws
from foretoken.errors.values import check_range
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.block_layers import BlockModel, BlockModule
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.narrow import loaded
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.best_first import Branches
from foretoken.trees.from_lists import from_parents
from foretoken.trees.join import assemble

_ROOTS = 128  # whose distributions exist at once in an estimate


@dataclass(eq=False)
class BlockTree(WithModel):
    """model: a checkpoint's folder, hub id or bundled name; top_k: tokens of a place that are
    tried; tree_nodes: nodes that are kept, those of the likeliest paths; num_speculative_tokens:
    fewer places than the checkpoint predicts."""

    model: Any = None
    top_k: int = 10
    tree_nodes: int = 59
    num_speculative_tokens: int | None = None

    module: ClassVar[type[BlockModule]]
    wants = Wants("bcd", (-1,))  # the layers follow from the checkpoint
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, top_k=self.top_k, tree_nodes=self.tree_nodes)
        self.module.check_source(self.model)

    @property
    def nodes(self) -> int:
        return self.tree_nodes

    def bind(self, access: Access) -> None:
        module: BlockModule = loaded(self.module, self.model, access)
        self._module, self._places = module, self._levels(module)
        self._access = access
        self._lm: BlockModel = module.serving(access)
        self.wants = replace(self.wants, hidden=module.reads)

    def _levels(self, module: BlockModule) -> int:
        most = module.places
        return draft_depth(
            self.num_speculative_tokens, most, f"the checkpoint predicts {most} places"
        )

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        device = self._access.device
        rows = [b for b, s in enumerate(sequences) if budgets[b] > 0 and self._lm.room(s)]
        if not rows:
            return assemble([], len(sequences), device)
        drafting = [sequences[row] for row in rows]
        states = self._lm.block_states(drafting)[:, : self._places]
        roots = torch.tensor([s.tokens[-1] for s in drafting], device=device)
        most = [budgets[row] for row in rows]
        logits = self._module.head_logits(states, self._access.head)
        trees = self.likeliest(self._module, states, roots, logits, most)
        tree = from_parents([t.tokens for t in trees], [t.parents for t in trees], device)
        return assemble([(rows, tree)], len(sequences), device)

    def likeliest(
        self, module: BlockModule, states: Tensor, roots: Tensor, logits: Tensor, budgets: Seq[int]
    ) -> list[Branches]:
        """The tree of each block with states [B, N, D], roots [B] and logits [B, N, V], of so many
        nodes."""
        raise NotImplementedError

    def acceptance(self, module: BlockModule, lesson: Lesson) -> Tensor:
        """[B, T, N] whether a step whose root is there accepts more than n places."""
        states = module.states(lesson)[:, :, : self._levels(module)]
        accepted = torch.zeros(states.shape[:3], dtype=torch.bool)
        roots = ((lesson.max_nodes >= 0) & (lesson.positions > 0)).nonzero()  # [C, 2]
        for chunk in roots.split(_ROOTS):
            row, root = chunk.T
            some, roots = states[row, root - 1], lesson.tokens[row, root]
            most = lesson.max_nodes[row, root].tolist()
            logits = module.head_logits(some, lesson.head)
            trees = self.likeliest(module, some, roots, logits, most)
            for (b, t), tree in zip(chunk.tolist(), trees, strict=True):
                accepted[b, t, : _depth(tree, _following(lesson, b, t, states.shape[2]))] = True
        return accepted.to(lesson.max_nodes.device)


def _following(lesson: Lesson, row: int, root: int, most: int) -> list[int]:
    """The record's next tokens after a place."""
    ahead = slice(root + 1, root + 1 + most)
    own = lesson.records[row, ahead] == lesson.records[row, root]
    tokens: list[int] = lesson.tokens[row, ahead][own].tolist()
    return tokens


def _depth(tree: Branches, text: Seq[int]) -> int:
    """How many of the text's tokens a path of the tree follows."""
    slots = {pair: slot for slot, pair in enumerate(zip(tree.parents, tree.tokens, strict=True), 1)}
    slot = 0
    for depth, token in enumerate(text):
        if (slot, token) not in slots:
            return depth
        slot = slots[slot, token]
    return len(text)
