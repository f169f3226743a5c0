"""Block verification: accept the longest prefix of a chain by the ratio of its joint laws.

With w_0 = 1 and w_i = min(1, w_{i-1} · p(x_i) / q(x_i)), a prefix of i < γ tokens passes with
probability S_i / (S_i + 1 - w_i), S_i = Σ_x max(w_i · p(x) - q(x), 0) over the law behind it, and
the whole chain with probability w_γ. All prefixes are tested and the longest that passes is kept;
the extra token comes from max(w_i · p - q, 0), or from p behind the whole chain. Source: Sun et al.
2025, "Block verification accelerates speculative decoding", Algorithm 2. γ is each row's own.

Why it is exact: let r = w_i · p be what prefix i owes. Behind it x is drafted with q(x), of which
min(q, r) is paid below, w_{i+1} being the share. What is left, max(r - q, 0) with sum S_i, must be
paid out of the cases in which nothing longer passed, and these have probability 1 - w_i + S_i.
It is `traversal` on a tree of one path.

Legend: B sequences, N chain nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.paths import path_to
from foretoken.protocols import Scores, Verdict
from foretoken.residual import proposal_laws, spent
from foretoken.tree import DraftTree, Kind


@dataclass(frozen=True)
class Block:
    """The exact rule for chains that accepts the most tokens on average."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Sun et al. 2025, Alg. 2"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        laws = proposal_laws(trees)
        joint = _joint_ratios(trees, scores.probs, laws)  # [B, S]
        chances = _chances(trees, scores.probs, laws, joint)  # [B, N]
        prefixes = torch.arange(1, trees.nodes + 1, device=joint.device)
        passed = draws.accept(chances) * prefixes
        last = passed.amax(1) if trees.nodes else passed.sum(1)
        owed = joint.gather(1, last[:, None])[:, 0]
        token = draws.pick(spent(trees, scores.probs, last, owed)[:, None], last[:, None])
        return Verdict(path_to(trees, last)[0], last, token[:, 0])


def _joint_ratios(trees: DraftTree, probs: Tensor, laws: Tensor | None) -> Tensor:
    """w [B, S]: 1 at the root, 0 behind the end of a chain."""
    drafted = trees.tokens[..., None]
    ratio = probs[:, :-1].gather(-1, drafted)[..., 0]  # [B, N]
    if laws is not None:
        ratio = ratio / laws.gather(-1, drafted)[..., 0]
    ratio = torch.where(trees.valid, ratio, 0.0).nan_to_num(0.0)
    joint = [probs.new_ones(trees.batch)]
    for node in range(trees.nodes):
        joint.append((joint[-1] * ratio[:, node]).clamp(max=1))
    return torch.stack(joint, 1)


def _chances(trees: DraftTree, probs: Tensor, laws: Tensor | None, joint: Tensor) -> Tensor:
    """[B, N] the probability that each prefix passes; that of a row's whole chain is w itself."""
    owed = joint[:, 1:-1]  # the prefixes that have a node behind them
    if laws is None:
        behind = probs[:, 1:-1].gather(-1, trees.tokens[:, 1:, None])[..., 0]
        excess = owed * (1 - behind)
    else:
        excess = (probs[:, 1:-1] * owed[..., None]).sub_(laws[:, 1:]).clamp_(min=0).sum(-1)
    chances = (excess / (excess + (1 - owed))).nan_to_num(1.0)
    inside = trees.valid[:, 1:]  # False where the prefix is the row's whole chain
    return torch.cat([torch.where(inside, chances, owed), joint[:, -1:][:, : trees.nodes]], 1)
