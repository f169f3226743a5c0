"""K-SEQ: test K i.i.d. draws one after the other against a share p / γ of the target's
distribution.

Draw i is accepted with probability min(1, p(x) / (γ q(x))), so with β = Σ min(q, p/γ) some draw is
accepted with probability 1 - (1 - β)^K, and then its distribution is min(q, p/γ) / β. What is left
of p is p - c · min(q, p/γ) with c = (1 - (1 - β)^K) / β. It is nowhere negative iff c ≤ γ, and the
smallest such γ, the root of 1 - (1 - β)^K = γ β in [1, K], accepts most: at least 1 - 1/e of what
any rule could. γ β = Σ min(γ q, p) grows with γ and β falls, so bisection finds it; the upper end
always has c ≤ γ, hence the rule is exact wherever the search stops. Source: Sun et al. 2023
(SpecTr), Algorithm 2 and section 4. K is the number of draws after a prefix, each row's own; of one
draw γ = 1, which is speculative sampling.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, K draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.chains import token_by_token
from foretoken.verify.shared.iid_trees import Choice, descend

_HALVINGS = 16


@dataclass(frozen=True)
class KSeq(Verifier):
    """The exact rule for i.i.d. branches that needs no linear programme."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Sun et al. 2023 (SpecTr), Alg. 2"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.INDEPENDENT, Kind.AUXILIARY})

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        if trees.is_chain:
            return token_by_token(trees, scores, draws)
        return descend(trees, scores, draws, _k_seq)


def _k_seq(choice: Choice) -> tuple[Tensor, Tensor]:
    p, q, tokens, open_ = choice
    count = open_.sum(1).clamp(min=1).to(p)  # [B]
    gamma = _least_gamma(p, q, count)
    share = torch.minimum(q, p / gamma[:, None])  # [B, V]
    beta = share.sum(-1).clamp(max=1)
    factor = (_any_accepted(beta, count) / beta).nan_to_num(1.0)
    chance = share.gather(1, tokens) / q.gather(1, tokens)
    rest = (p - share * factor[:, None]).clamp_(min=0)
    # Where nothing is left over only rounding can lead, and p is as good a distribution as any.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
    return chance.nan_to_num(0.0).clamp(max=1), rest


def _any_accepted(beta: Tensor, count: Tensor) -> Tensor:
    """[B] 1 - (1 - β)^K, the chance that one of K tests passes; accurate for small β too."""
    return -torch.expm1(count * torch.log1p(-beta))


def _least_gamma(p: Tensor, q: Tensor, count: Tensor) -> Tensor:
    """[B] the least γ in [1, K] with 1 - (1 - β)^K ≤ γ β, from above."""
    low, high = torch.ones_like(count), count
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beta = torch.minimum(q, p / middle[:, None]).sum(-1).clamp(max=1)
        enough = _any_accepted(beta, count) <= middle * beta
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
