"""Recursive rejection: test the siblings one after the other against the remaining residual.

From the root on, a child x drawn from q is accepted with probability min(1, r(x) / q(x)), where r
is the target's distribution at first and norm(max(r - q, 0)) after each rejection; if none of the
siblings is accepted the extra token comes from the last r. Source: Miao et al. 2024 (SpecInfer),
Algorithm 2; siblings without replacement, whose q loses the earlier ones: Yang et al. 2024 (MCSD),
section 3; Chen et al. 2024 (Sequoia), Algorithm 2. A chosen child is a point mass: it is accepted
with probability r(x) and taken out of r (EAGLE-2's top-k trees); trees of which all nodes were
chosen are left to `by_own_sample`. Departure: where q has nothing left, Sequoia draws uniformly
from the rest; here such a child is never accepted.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, K siblings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.chains import token_by_token
from foretoken.verify.shared.chosen import by_own_sample
from foretoken.verify.shared.paths import path_to
from foretoken.verify.shared.residual import Residual, final_residual, offers


@dataclass(frozen=True)
class MultiCandidate(Verifier):
    """The exact rule for trees of drawn or chosen nodes, from the root to the leaves."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Miao et al. 2024, Alg. 2; Yang et al. 2024, §3; Chen et al. 2024"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        if trees.is_chain:
            return token_by_token(trees, scores, draws)
        return by_own_sample(trees, scores, draws, _from_the_root)


def _from_the_root(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    rows = torch.arange(trees.batch, device=trees.tokens.device)
    last = torch.zeros_like(rows)  # [B] the deepest accepted slot
    alive = torch.ones_like(rows, dtype=torch.bool)  # [B] the last level accepted a node
    for width in trees.widths:
        residual = Residual(scores.probs[rows, last])
        accepted = last
        for rank, offer in enumerate(offers(trees, rows, last, width)):
            chance = torch.where(alive & (accepted == last), residual.chance(offer), 0.0)
            hit = draws.accept(chance[:, None], (offer.slots - 1)[:, None])[:, 0]
            accepted = torch.where(hit, offer.slots, accepted)
            if rank + 1 < width:
                residual.reject(offer)
        alive = accepted != last
        last = accepted
    path, lengths = path_to(trees, last)
    token = draws.pick(final_residual(trees, scores.probs, last)[:, None], lengths[:, None])
    return Verdict(path, lengths, token[:, 0])
