"""Speculative sampling: accept a drawn token x with probability min(1, p(x)/q(x)).

On the first rejection the token is drawn from the residual max(0, p - q), normalised; if all are
accepted one more comes from p. Source: Leviathan et al. 2023, Algorithm 1 and appendix A.1; Chen et
al. 2023, Algorithm 2. Chosen tokens are a point mass q, for which the same rule accepts with p(x)
and removes x from the residual. Temperature 0 is a one-hot p and q, so this is also greedy
verification.

Legend: B sequences, N chain nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict
from foretoken.residual import proposal_laws
from foretoken.tree import DraftTree, Kind


@dataclass(frozen=True)
class Speculative:
    """The exact rule for chains of drawn or chosen tokens."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        if trees.nodes == 0:
            token = draws.pick(scores.probs, trees.depths)[:, 0]
            return Verdict(token.new_zeros(trees.batch, 0), token.new_zeros(trees.batch), token)
        drafted = trees.tokens[..., None]
        ratio = scores.probs[:, :-1].gather(-1, drafted)[..., 0]  # [B, N]: p, and p / q if drawn
        laws = proposal_laws(trees)
        if laws is not None:
            ratio = ratio / laws.gather(-1, drafted)[..., 0]
        accepted = draws.accept(ratio.clamp(max=1)) & trees.valid
        lengths = accepted.long().cumprod(1).sum(1)  # [B]
        token = draws.pick(_final_law(trees, scores.probs, laws, lengths), lengths[:, None])
        path = torch.arange(1, trees.nodes + 1, device=lengths.device).expand(trees.batch, -1)
        return Verdict(path, lengths, token[:, 0])


def _final_law(trees: DraftTree, probs: Tensor, laws: Tensor | None, lengths: Tensor) -> Tensor:
    """[B, 1, V]: the residual at the first rejected node, or p itself where none was rejected."""
    rows = torch.arange(trees.batch, device=lengths.device)
    p = probs[rows, lengths]  # [B, V]
    node = lengths.clamp(max=trees.nodes - 1)  # the rejected one, if any
    if laws is None:
        residual = p.scatter(-1, trees.tokens.gather(1, node[:, None]), 0.0)
    else:
        residual = (p - laws[rows, node]).clamp(min=0)
    counts = torch.tensor(trees.counts, device=lengths.device)
    # Where p and q agree up to rounding nothing is left over: a rejection there has probability 0
    # and only rounding can lead here, so p is as good a law as any.
    whole = (lengths >= counts)[:, None] | (residual.sum(-1, keepdim=True) <= 0)
    return torch.where(whole, p, residual)[:, None]
