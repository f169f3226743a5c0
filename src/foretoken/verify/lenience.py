"""Lenience: speculative sampling that accepts more than the exact rule, at the cost of exactness.

A drawn token x passes with probability min(1, p(x) / (l·q(x))): q is multiplied by the lenience l
before it is compared; the rest of the algorithm stays as it is, the residual max(0, p - q) too. So
no token is written with more than p(x) / l, and no other residual brings the result closer to p in
total variation: this one adds only what acceptance left missing. l = 1 is
speculative sampling. A distribution of one token (temperature 0) can't be scaled: there x passes if
its probability without temperature exceeds l times the likeliest one's. Source: Leviathan et al.
2023, app. A.5.

A token strays if the test at l = 1 with the same number would have rejected it. Leniency is a
second test of the rejected ones, with probability (min(1, p/lq) - min(1, p/q)) / (1 - min(1, p/q)).

Legend: B sequences, N chain nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.approximate import at_nodes, ratio
from foretoken.verify.shared.residual import final_residual, proposal_distributions

_SECOND_TESTS = 1 << 20  # their first number: above those of the first tests of any draft


@dataclass(frozen=True)
class Lenience(Verifier):
    """lenience: what q is multiplied by; 1 is lossless, smaller accepts more."""

    lenience: float = 0.5

    exact: ClassVar[bool] = False
    reads_logits: ClassVar[bool] = True
    trees: ClassVar[bool] = False
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Leviathan et al. 2023, App. A.5"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise ForetokenError(
                f"lenience is {self.lenience}; it must be above 0 and at most 1 (1 is lossless)."
            )

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        if trees.nodes == 0:
            token = draws.pick(scores.probs, trees.depths)[:, 0]
            none = token.new_zeros(trees.batch)
            return Verdict(token.new_zeros(trees.batch, 0), none, token, none)
        strict = ratio(trees, scores.probs)  # [B, N]
        more = (self._lenient(trees, scores) - strict) / (1 - strict)
        place = torch.arange(trees.nodes, device=strict.device).expand(trees.batch, -1)
        lossless = draws.accept(strict)
        forgiven = draws.accept(more.nan_to_num(0.0).clamp(0, 1), place + _SECOND_TESTS)
        accepted = (lossless | forgiven) & trees.valid
        lengths = accepted.long().cumprod(1).sum(1)  # [B]
        strayed = ((place < lengths[:, None]) & ~lossless).sum(1)
        distribution = final_residual(trees, scores.probs, lengths)  # [B, V]
        token = draws.pick(distribution[:, None], lengths[:, None])[:, 0]
        return Verdict(place + 1, lengths, token, strayed)

    def _lenient(self, trees: DraftTree, scores: Scores) -> Tensor:
        """[B, N] the probability with which each node passes."""
        raw = scores.logits.softmax(-1)  # [B, S, V] without temperature
        highest = raw.amax(-1).gather(1, trees.parent_slots)
        near = at_nodes(trees, raw) > self.lenience * highest
        greedy = ((scores.probs > 0).sum(-1) == 1).gather(1, trees.parent_slots)  # [B, N]
        sure = near | (at_nodes(trees, scores.probs) > 0)
        return torch.where(greedy, sure.to(raw.dtype), ratio(trees, scores.probs, self.lenience))


def written_distributions(trees: DraftTree, probs: Tensor, lenience: float) -> Tensor:
    """[B, S, V] the distribution of the token that this rule writes after each slot of a chain:
    min(q, p / l), and max(p - q, 0) for the mass that is missing. It does not hold where p is a
    point mass, since there the rule reads more than probs [B, S, V]."""
    if not trees.nodes:
        return probs
    p, q = probs[:, :-1], proposal_distributions(trees)
    if q is None:
        q = torch.zeros_like(p).scatter_(-1, trees.tokens[..., None], 1.0)
    passed, rest = torch.minimum(q, p / lenience), (p - q).clamp(min=0)
    rest = (rest / rest.sum(-1, keepdim=True)).nan_to_num(0.0)
    distribution = passed + (1 - passed.sum(-1, keepdim=True)) * rest
    distribution = torch.where(
        trees.valid[..., None], distribution, p
    )  # after the end of a row's chain it is p
    return torch.cat((distribution, probs[:, -1:]), 1)
