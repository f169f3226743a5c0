"""Medusa: heads on the target's last state guess several tokens ahead, each its own place.

Source: Cai et al. 2024 (Medusa), sections 2.1 and 2.2. A head is `num_layers` blocks x + SiLU(Wx)
and a language-model head. Their likeliest guesses fill a static tree. Training keeps the target
frozen (Medusa-1): the loss is the sum over heads of 0.8^i times cross-entropy. With the rule
`typical` this is the paper's own acceptance, which is approximate; with `target_only` the text is
plain decoding's. Departures: blocks start as the identity, biases included; `own_lm_heads=False`
has all heads share the target's language-model head, which is most of the weights.

Legend: B rows, T places, H heads, D width, V vocabulary, N tree nodes.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.builders import static
from foretoken.draws import Draws
from foretoken.heads import (
    LastStates,
    Paths,
    accepted,
    fitting,
    heads_loss,
    heads_ranks,
    rank_counts,
    rates_of,
    tree_of,
)
from foretoken.lesson import Lesson
from foretoken.losses import Objective
from foretoken.protocols import Access, BaseDrafter, Sequence, Step, Wants
from foretoken.trained import Ends, Facts, Trained, weight_of
from foretoken.tree import DraftTree, placed


class ResBlock(nn.Module):
    """x + SiLU(Wx + b), at first the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(Trained):
    """num_heads: places guessed ahead; num_layers: blocks of each head; own_lm_heads: whether each
    head has a language-model head of its own. Weights are named as FasterDecoding names them."""

    method: ClassVar[str] = "medusa"

    def __init__(
        self, facts: Facts, num_heads: int = 4, num_layers: int = 1, own_lm_heads: bool = True
    ) -> None:
        super().__init__(
            facts, num_heads=num_heads, num_layers=num_layers, own_lm_heads=own_lm_heads
        )
        width = facts.hidden_size
        for i in range(num_heads):
            blocks: list[nn.Module] = [ResBlock(width) for _ in range(num_layers)]
            if own_lm_heads:
                blocks.append(nn.Linear(width, facts.vocab_size, bias=False))
            self.add_module(str(i), nn.ModuleList(blocks))

    def _heads(self) -> list[Any]:
        return list(self.children())

    def start(self, target: Ends) -> None:
        with torch.no_grad():
            for weight in self._own():
                weight.copy_(weight_of(target, self.facts.hidden_size, weight))

    def _own(self) -> list[Tensor]:
        """The language-model heads' matrices [V, D], or none."""
        return [head[-1].weight for head in self._heads()] if self.shape["own_lm_heads"] else []

    def states(self, x: Tensor) -> Tensor:
        """The target's states [..., D] -> each head's [..., H, D]."""
        found = []
        for head in self._heads():
            state = x
            for block in head[: self.shape["num_layers"]]:
                state = block(state)
            found.append(state)
        return torch.stack(found, -2)

    def logits(self, states: Tensor, head: Any) -> Tensor:
        """[..., H, D] -> [..., H, V]; head: the target's."""
        own = self._own()
        if not own:
            shared: Tensor = head(states)
            return shared
        parts = [F.linear(states[..., i, :], weight) for i, weight in enumerate(own)]
        return torch.stack(parts, -2)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        states = self.states(lesson.hidden[-1])
        return heads_loss(
            lesson, states, lambda x: self.logits(x, lesson.head), self._own(), objective
        )

    def ranks(self, lesson: Lesson) -> Tensor:
        """[B, T, H], as `heads_ranks` has it."""
        states = self.states(lesson.hidden[-1])
        return heads_ranks(lesson, states, lambda x: self.logits(x, lesson.head))

    def tally(self, lesson: Lesson) -> Tensor:
        return rank_counts(self.ranks(lesson), lesson.room)

    def note(self, counts: Tensor) -> None:
        self.notes["rates"] = rates_of(counts)


@dataclass(eq=False)
class Medusa(BaseDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree: "medusa" (63 nodes), "planned"
    (of `tree_nodes` nodes, for the rates that the checkpoint was measured at) or rank paths."""

    model: Any = None
    tree: str | Seq[Seq[int]] = "medusa"
    tree_nodes: int = 63

    module: ClassVar[type[Trained]] = MedusaHeads
    wants = Wants("bc", (-1,))
    trees = True

    def __post_init__(self) -> None:
        MedusaHeads.named(self.model)

    def bind(self, access: Access) -> None:
        self._heads = MedusaHeads.load(self.model, access)
        self._access = access
        self._paths = self._tree(self._heads)
        self._ranks = 1 + max((max(path) for path in self._paths), default=0)
        self._states = LastStates()

    def _tree(self, heads: Trained) -> Paths:
        paths = tree_of(self.tree, self.tree_nodes, heads.notes.get("rates"))
        return fitting(paths, heads.shape["num_heads"], heads.facts.vocab_size)

    def reached(self, heads: MedusaHeads, lesson: Lesson) -> Tensor:
        """[B, T, depth] whether a step whose root stands there accepts more than n places."""
        return accepted(heads.ranks(lesson), lesson.room, self._tree(heads))

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        rows, states = self._states.of(sequences)
        if states is None or not self._paths:
            return placed([], len(sequences), self._access.device)
        logits = self._heads.logits(self._heads.states(states), self._access.head)  # [B, H, V]
        tree = static(self._paths, logits.topk(self._ranks).indices)
        return placed([(rows, tree)], len(sequences), self._access.device).trim(budgets)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._states.observe(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._states.fork(sequence, copy)
