"""Speculative sampling: accept a drawn token x with probability min(1, p(x)/q(x)).

On the first rejection the token is drawn from the residual max(0, p - q), normalised; if all are
accepted one more comes from p. Source: Leviathan et al. 2023, Algorithm 1 and appendix A.1; Chen et
al. 2023, Algorithm 2. The arithmetic is in `shared/chains.py`, since other rules use it on chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.chains import token_by_token


@dataclass(frozen=True)
class Speculative(Verifier):
    """The exact rule for chains of drawn or chosen tokens."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return token_by_token(trees, scores, draws)
