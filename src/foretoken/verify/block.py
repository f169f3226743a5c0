"""Block verification: accept the longest prefix of a chain that passes a test of all its tokens.

Source: Sun et al. 2025, "Block verification accelerates speculative decoding", Algorithm 2; the
arithmetic is in `shared/chains.py`, since `traversal` uses it on chains.

Why it is exact: after prefix i the rule must write each token x with probability r(x) = w_i · p(x).
x is drafted with probability q(x), and longer prefixes write it with min(q, r); w_{i+1} is their
share. The rest, max(r - q, 0) with sum S_i, must be written in the cases in which no longer prefix
passed, and these have probability 1 - w_i + S_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.chains import as_a_block


@dataclass(frozen=True)
class Block(Verifier):
    """The exact rule for chains that accepts the most tokens on average."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Sun et al. 2025, Alg. 2"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return as_a_block(trees, scores, draws)
