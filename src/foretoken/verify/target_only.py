"""Target-only sampling: accept a drafted token iff it is the one sampled from the target there.

Exact for chosen nodes on chains and trees: each emitted token is the target's own sample, drawn
with its position's own noise, so the text is token for token what plain decoding writes with the
same seed, at any temperature. Known as sampled match (llama.cpp) and used by REST (He et al. 2024,
section 3.3); greedy decoding is the special case of a one-hot distribution.

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
class TargetOnly(Verifier):
    """Accept the longest path along which every node is the target's own sample."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "He et al. 2024 (REST), §3.3"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.CHOSEN, Kind.AUXILIARY})
    compares: ClassVar[bool] = True

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return longest_match(trees, scores, draws.pick)
