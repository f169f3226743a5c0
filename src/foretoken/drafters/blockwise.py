"""Blockwise parallel decoding: a feed-forward layer on the last state predicts the next places.

Source: Stern, Shazeer, Uszkoreit 2018, sections 3 and 4: the target's last state goes through a
layer of `hidden_factor` · width units for each place, with a residual connection, and through the
target's own language-model head; each place's likeliest token makes the chain, which the target
scores in the pass that also gives the next step's state. Training keeps the target frozen (the
paper's first variant) and sums the loss of all places, where the paper draws one place a step to
save memory. Here drafts are verified by exact match; the paper's approximate
criteria are the rules `top_beta` and `distance`.

Legend: B rows, T places, H heads, D width, F units, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.access import Access, Wants
from foretoken.drafters.shared.depth import draft_depth
from foretoken.drafters.shared.head_tree import Heads
from foretoken.draws import Draws
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.rank_trees import tree_acceptance
from foretoken.trainable.root_states import LastStates, drafting
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.join import assemble


class BlockwiseHeads(Heads):
    """A feed-forward layer for all places. num_heads: places predicted; hidden_factor: units for
    each place ÷ the target's width."""

    method: ClassVar[str] = "blockwise"

    def __init__(self, facts: Facts, num_heads: int = 4, hidden_factor: int = 2) -> None:
        super().__init__(facts, num_heads=num_heads, hidden_factor=hidden_factor)
        width, self._heads = facts.hidden_size, num_heads
        self.up = nn.Linear(width, num_heads * hidden_factor * width)
        self.down = nn.Parameter(torch.zeros(num_heads, hidden_factor * width, width))

    def states(self, x: Tensor) -> Tensor:
        """The target's states [..., D] -> each head's [..., H, D]; at first the target's own."""
        units = F.relu(self.up(x)).unflatten(-1, (self._heads, -1))  # [..., H, F]
        out: Tensor = x[..., None, :] + torch.einsum("...hf,hfd->...hd", units, self.down)
        return out

    def head_states(self, lesson: Lesson, places: Tensor) -> Tensor:
        return self.states(lesson.hidden[-1].take_along_dim(places[..., None], 1))


@dataclass(eq=False)
class Blockwise(BaseDrafter):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: fewer places
    than the checkpoint has heads."""

    model: Any = None
    num_speculative_tokens: int | None = None

    module: ClassVar[type[Trained]] = BlockwiseHeads
    wants = Wants("ac", (-1,), last=1)

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        BlockwiseHeads.check_source(self.model)

    def bind(self, access: Access) -> None:
        self._heads = BlockwiseHeads.load(self.model, access)
        self._access, self._states = access, LastStates()

    @property
    def nodes(self) -> int:
        return self._length(self._heads)

    def _length(self, heads: Trained) -> int:
        most: int = heads.shape["num_heads"]
        return draft_depth(self.num_speculative_tokens, most, f"the checkpoint has {most} heads")

    def acceptance(self, heads: BlockwiseHeads, lesson: Lesson) -> Tensor:
        """[B, T, H] whether a step whose root is there accepts more than n places."""
        chain = [(0,) * (n + 1) for n in range(self._length(heads))]
        return tree_acceptance(heads.ranks(lesson), lesson.max_nodes, chain)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows, states = drafting(self._states, sequences, budgets)
        if states is None:
            return assemble([], len(sequences), self._access.device)
        length = self._length(self._heads)
        tokens = self._access.head(self._heads.states(states)[:, :length]).argmax(-1)
        chains = DraftTree(tokens, [length] * len(rows))
        return assemble([(rows, chains)], len(sequences), self._access.device).trim(budgets)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._states.observe(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._states.fork(sequence, copy)
