"""Contrast: accept a token that the target holds for plausible and the drafter didn't overrate.

A drafted token x passes if p(x) >= alpha · max p, and if its contrastive score log p(x) - log q(x)
is at least log tau, with p the target's distribution at its parent and q the one that x was drawn
from, both under the request's sampling parameters. Where a small model guesses with more confidence
than the target has in the guess, the draft is of low quality and ends; a chosen token counts as one
of which the drafter was certain, q(x) = 1. The longest path that passes is kept, of equally long
ones the likeliest. Temperature 0 is greedy decoding.

Source: Li et al. 2023 (Contrastive Decoding) for the plausible set, its alpha = 0.1 and the score;
Zhang et al. 2024 (Beyond the Speculative Game) for contrast as what keeps out bad drafts. Neither
names a threshold: tau = 0.5 is ours. `models/contrastive.py` is the method itself, which is exact.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import at_nodes, ratio, verdict


@dataclass(frozen=True)
class Contrast(Verifier):
    """alpha: share of the likeliest token's probability that makes a token plausible. tau: share of
    the drafter's probability that the target must give; lower accepts more."""

    alpha: float = 0.1
    tau: float = 0.5

    exact: ClassVar[bool] = False
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Li et al. 2023 (Contrastive Decoding), as a criterion"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __post_init__(self) -> None:
        if not (0 <= self.alpha <= 1 and 0 <= self.tau <= 1):
            raise ForetokenError(
                f"alpha is {self.alpha} and tau {self.tau}; both must be in [0, 1]."
            )

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        p = at_nodes(trees, scores.probs)  # [B, N]
        floor = self.alpha * scores.probs.amax(-1).gather(1, trees.parent_slots)
        passed = (p > 0) & (p >= floor) & (ratio(trees, scores.probs) >= self.tau)
        return verdict(trees, scores, draws, passed, likelihood=p.log())
