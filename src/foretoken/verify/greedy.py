"""Greedy verification: accept a drafted token iff it is the likeliest one of the target there.

Source: Stern et al. 2018, section 3, with k = 1 (exact match); on trees the longest path that
matches, as in Miao et al. 2024 (SpecInfer), Algorithm 2, VerifyGreedy. It draws nothing, so it
serves temperature 0 only, and takes nodes of every kind.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.paths import longest_match


@dataclass(frozen=True)
class Greedy(Verifier):
    """Accept the longest path along which every node is the target's likeliest token."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = False
    source: ClassVar[str] = "Stern et al. 2018, §3; Miao et al. 2024, Alg. 2"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return longest_match(trees, scores, lambda distributions, depths: distributions.argmax(-1))
