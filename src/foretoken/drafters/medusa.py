"""Medusa: heads on the target's last state predict several tokens ahead, one place each.

Source: Cai et al. 2024 (Medusa), sections 2.1 and 2.2. A head is `num_layers` blocks x + SiLU(Wx)
and a language-model head. Their likeliest tokens fill a static tree. Training keeps the target
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

from foretoken.drafters.shared.head_tree import Heads, HeadTree
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.rank_trees import Paths
from foretoken.tree import DraftTree
from foretoken.trees.grow import static


class ResBlock(nn.Module):
    """x + SiLU(Wx + b), at first the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(Heads):
    """Medusa's heads. num_heads: places predicted; num_layers: blocks of each head; own_lm_heads:
    whether each head has a language-model head. Weights are named as FasterDecoding names them."""

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

    def language_model_heads(self) -> list[Tensor]:
        return [head[-1].weight for head in self._heads()] if self.shape["own_lm_heads"] else []

    def logits(self, states: Tensor, head: Any) -> Tensor:
        if not self.shape["own_lm_heads"]:
            return super().logits(states, head)
        heads = self._heads()[: states.shape[-2]]
        parts = [own[-1](states[..., i, :]) for i, own in enumerate(heads)]
        return torch.stack(parts, -2)

    def head_states(self, lesson: Lesson, places: Tensor) -> Tensor:
        return self.states(lesson.hidden[-1].take_along_dim(places[..., None], 1))

    def states(self, x: Tensor, count: int | None = None) -> Tensor:
        """The target's states [..., D] -> each head's, or of the first `count`, [..., H, D]."""
        outputs = []
        for head in self._heads()[:count]:
            state = x
            for block in head[: self.shape["num_layers"]]:
                state = block(state)
            outputs.append(state)
        return torch.stack(outputs, -2)


@dataclass(eq=False)
class Medusa(HeadTree):
    """model: a checkpoint's folder, hub id or bundled name; tree: "paper" (Medusa's 63
    nodes), "auto" (planned for measured costs, at most the likeliest `tree_nodes` of these, which
    are drafted where no costs are known), "planned" (of `tree_nodes` nodes, for the rates that the
    checkpoint was measured at) or rank paths; tree_nodes: 63 by default, not with rank paths;
    num_speculative_tokens: fewer levels than the checkpoint has heads."""

    module: ClassVar[type[Heads]] = MedusaHeads

    def build_tree(
        self, paths: Paths, states: Tensor, roots: Tensor, budgets: Seq[int]
    ) -> DraftTree:
        levels, ranks = max(map(len, paths)), 1 + max(max(path) for path in paths)
        read = self._heads.states(states, levels)  # heads that no level asks run for nothing
        logits = self._heads.logits(read, self._access.head)  # [B, H, V]
        return static(paths, logits.topk(ranks).indices).trim(budgets)
