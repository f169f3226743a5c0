"""Typical acceptance: accept a token that is likely enough for how uncertain the target is.

A drafted token x passes if p(x) > min(epsilon, delta · exp(-H(p))), with p the target's
distribution at its parent under the request's temperature and H its entropy; the longest path that
passes is kept, of equally long ones the likeliest. Temperature 0 is greedy decoding. Source: Cai et
al. 2024 (Medusa), "Typical Acceptance", with the implementation's epsilon = 0.09 and delta = 0.3
(its square root).

Departures: so that every step writes a token, Medusa always accepts one of the target's greedy
tokens; here the extra token of a step takes its place, and it is the target's own sample, so that
it is drawn at the requested temperature. Drawn nodes are tested by the same criterion.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import at_nodes, verdict


@dataclass(frozen=True)
class Typical(Verifier):
    """epsilon: a token above this probability passes. delta: so does one above this share of
    exp(-entropy)."""

    epsilon: float = 0.09
    delta: float = 0.3

    exact: ClassVar[bool] = False
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Cai et al. 2024 (Medusa), Typical Acceptance"
    kinds: ClassVar[frozenset[Kind]] = frozenset(
        {Kind.CHOSEN, Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT, Kind.AUXILIARY}
    )

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon <= 1 and self.delta >= 0):
            raise ForetokenError(
                f"epsilon is {self.epsilon} and delta {self.delta}; epsilon must be in [0, 1] and "
                "delta at least 0."
            )

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        entropy = -scores.probs.xlogy(scores.probs).sum(-1)  # [B, S]
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
        p = at_nodes(trees, scores.probs)  # [B, N]
        passed = p > threshold.gather(1, trees.parent_slots)
        return verdict(trees, scores, draws, passed, likelihood=p.log())
