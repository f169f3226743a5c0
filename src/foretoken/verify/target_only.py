"""Target-only sampling: accept a drafted token iff it is the one sampled from the target there.

Exact for chosen nodes on chains and trees: each emitted token is the target's own sample, drawn
with its position's own noise, so the text is token for token what plain decoding writes with the
same seed, at any temperature. Known as sampled match (llama.cpp) and used by REST (He et al. 2024,
section 3.3); greedy decoding is the special case of a one-hot law.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree, Kind


@dataclass(frozen=True)
class TargetOnly:
    """Accept the longest path along which every node is the target's own sample."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.CHOSEN, Kind.AUXILIARY})

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        sampled = draws.pick(scores.probs, trees.depths)  # [B, S]
        if trees.nodes == 0:
            none = sampled.new_zeros(trees.batch, 0)
            return Verdict(none, sampled.new_zeros(trees.batch), sampled[:, 0])
        matches = (trees.tokens == sampled.gather(1, trees.parent_slots)) & trees.valid  # [B, N]
        if trees.is_chain:
            lengths = matches.long().cumprod(1).sum(1)  # [B]
            path = torch.arange(1, trees.nodes + 1, device=sampled.device).expand(trees.batch, -1)
            return Verdict(path, lengths, sampled.gather(1, lengths[:, None])[:, 0])
        return _longest(trees, matches, sampled)


def _longest(trees: DraftTree, matches: Tensor, sampled: Tensor) -> Verdict:
    """The deepest slot all of whose path matches, and the path to it (first of equals)."""
    rejected = torch.cat([matches.new_zeros(trees.batch, 1), ~matches], 1)  # [B, S]
    alive = ~(trees.ancestors & rejected[:, None, :]).any(-1)  # [B, S]
    depth = torch.where(alive, trees.depths, -1)
    last = depth.argmax(1)  # [B]
    lengths = depth.gather(1, last[:, None])[:, 0]
    on_path = trees.ancestors[torch.arange(trees.batch, device=last.device), last]  # [B, S]
    # Slots are in an order with parents first, so the path's slots in rising order are the path.
    order = torch.where(on_path[:, 1:], torch.arange(trees.nodes, device=last.device), trees.nodes)
    path = order.sort(1).values.clamp(max=trees.nodes - 1) + 1
    return Verdict(path, lengths, sampled.gather(1, last[:, None])[:, 0])
