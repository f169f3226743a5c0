"""Rollback by cross-entropy: keep the draft up to the first token that the target finds unlikely.

A drafted token passes if its cross-entropy -log p(token) under the target is at most alpha; at the
first that exceeds it the draft is cut and the target's likeliest token takes its place, unless the
drafted token is that one. Source: Kim et al. 2023 (Big Little Decoder), rollback policy, with the
threshold 5.0 of their implementation; 0 is greedy decoding. Their fallback threshold ends
a draft, which is a matter of length rules.

Departures: the paper's draft is a chain; on a tree the longest path that passes is kept.

Legend: B sequences, N tree nodes, S = N + 1 slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import at_nodes, likeliest, verdict


@dataclass(frozen=True)
class Rollback(Verifier):
    """alpha: the largest cross-entropy, in nats, that a drafted token may have."""

    alpha: float = 5.0

    exact: ClassVar[bool] = False
    reads_logits: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = False
    source: ClassVar[str] = "Kim et al. 2023 (BiLD), rollback policy"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ForetokenError(f"alpha is {self.alpha}; it must be at least 0.")

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        total = scores.logits.logsumexp(-1).gather(1, trees.parent_slots)  # [B, N]
        passed = total - at_nodes(trees, scores.logits) <= self.alpha
        return verdict(trees, scores, draws, passed | likeliest(trees, scores))
