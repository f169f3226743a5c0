"""Top-β with a tolerance: accept a token that the target ranks high and close to its first choice.

A drafted token passes if it is among the target's β likeliest and its log-probability is at most τ
below the likeliest one's. β = 1 is greedy decoding. Source: Xia et al. 2023 (SpecDec),
Spec-Verification, whose β = 3 and τ = 1 are the defaults (its scripts start with 5 and 3). With τ
infinite it is the top-k selection of Blockwise Parallel Decoding (Stern et al. 2018, section 5.1).

Departures: SpecDec checks a block; on a tree the longest path whose tokens all pass is kept.

Legend: B sequences, N tree nodes, S = N + 1 slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import at_nodes, likeliest, verdict, within_top


@dataclass(frozen=True)
class TopBeta(Verifier):
    """beta: how many of the target's likeliest tokens may pass. tau: how far below the first."""

    beta: int = 3
    tau: float = 1.0

    exact: ClassVar[bool] = False
    reads_logits: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = False
    source: ClassVar[str] = "Xia et al. 2023 (SpecDec), Spec-Verification; Stern et al. 2018, §5.1"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __post_init__(self) -> None:
        if self.beta < 1 or not self.tau >= 0:
            raise ForetokenError(
                f"beta is {self.beta} and tau {self.tau}; beta must be at least 1 and tau at "
                "least 0."
            )

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        first = scores.logits.amax(-1).gather(1, trees.parent_slots)  # [B, N]
        near = first - at_nodes(trees, scores.logits) <= self.tau
        passed = near & within_top(trees, scores.logits, self.beta)
        return verdict(trees, scores, draws, passed | likeliest(trees, scores))
