"""Coupled sampling: drafter and target share the noise of each position, so they tend to agree.

Both take the token that wins a race of exponential clocks, the rates being its own distribution
(the Gumbel trick in other words); the clocks belong to (sequence, position, token), so the emitted
text is a function of the target and the seed alone, whatever the drafter. A drafted token is
accepted iff it is the target's own. Over the noise the two agree with probability Σ_x 1 / Σ_y
max(p_y/p_x, q_y/q_x) ≥ (1 - TV) / (1 + TV). Source: Daliri, Musco, Suresh 2025, "Coupling without
communication and drafter-invariant speculative decoding", sections 3 and 4.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws, GumbelDraws
from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.paths import longest_match


@dataclass(frozen=True)
class Gumbel:
    """Accept the longest path along which every node is the target's own sample."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    draws: ClassVar[type[GumbelDraws]] = GumbelDraws
    source: ClassVar[str] = "Daliri, Musco, Suresh 2025, §3–4"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return longest_match(trees, scores, draws.pick)
