"""Distance-based acceptance, for vocabularies whose ids are quantities (pixel intensities, levels).

A drafted token passes if its id is at most `epsilon` away from the target's likeliest one, and a
step writes at least `minimum_block` tokens however far they are off. Source: Stern et al. 2018
(Blockwise Parallel Decoding), sections 5.2 (distance) and 5.3 (minimum block size); their top-k
selection (5.1) is `top_beta` with tau infinite. The default epsilon = 2 is what they use for
super-resolution; 0 is greedy decoding.

Their block size counts the token that the target itself gave, which is the extra token of a step
here; so `minimum_block` - 1 drafted tokens pass in any case, and 1 forces nothing.

Legend: B sequences, N chain nodes, S = N + 1 slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import verdict


@dataclass(frozen=True)
class Distance(Verifier):
    """epsilon: the largest distance that passes. minimum_block: tokens that a step writes at
    least, if as many were drafted."""

    epsilon: int = 2
    minimum_block: int = 1

    exact: ClassVar[bool] = False
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = False
    source: ClassVar[str] = "Stern et al. 2018 (Blockwise), §5.2–5.3"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __post_init__(self) -> None:
        if self.epsilon < 0 or self.minimum_block < 1:
            raise ForetokenError(
                f"epsilon is {self.epsilon} and minimum_block {self.minimum_block}; epsilon must "
                "be at least 0 and minimum_block at least 1."
            )

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        best = scores.probs.argmax(-1).gather(1, trees.parent_slots)  # [B, N]
        near = (trees.tokens - best).abs() <= self.epsilon
        forced = trees.depths[:, 1:] < self.minimum_block
        return verdict(trees, scores, draws, near | forced)
