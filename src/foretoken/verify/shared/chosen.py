"""Drafts of chosen tokens under rules for drawn ones: the target's own sample decides.

A chosen token is a point mass, which a rule for drawn tokens accepts with the probability that the
target gives it. Whether the target's own sample at its place is that token has the same probability
(He et al. 2024, section 3.3), and it is exact for a token that follows from that very sample: a
prediction, or a remembered text, that was written with the same seed. A test with noise of its own
would then be biased, as what replaces the token comes from the sample that the token came from.

Legend: B sequences, N tree nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foretoken.draws import Draws, GreedyDraws
from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.paths import longest_match, match_along

Rule = Callable[[DraftTree, Scores, Draws], Verdict]


def by_own_sample(trees: DraftTree, scores: Scores, draws: Draws, rule: Rule) -> Verdict:
    """The longest match with the target's own samples in rows without drawn nodes, and where all
    distributions are point masses; `rule` in the others."""
    drawn = is_drawn(trees)
    if isinstance(draws, GreedyDraws):
        return longest_match(trees, scores, draws.pick)
    if drawn is None:
        return _match(trees, scores, draws)
    if trees.kinds is None:
        return rule(trees, scores, draws)
    own: list[bool] = (~(drawn & trees.counted).any(1)).tolist()
    if not any(own):
        return rule(trees, scores, draws)
    token = trees.tokens.new_zeros(trees.batch)
    verdict = Verdict(trees.tokens.new_zeros(trees.tokens.shape), token.clone(), token)
    for decide, matched in ((_match, True), (rule, False)):
        if rows := [row for row, chosen in enumerate(own) if chosen is matched]:
            some = Scores(scores.logits[rows], scores.probs[rows], scores.bad[rows])
            part = decide(trees.take(rows), some, draws.take(rows))
            verdict.path[rows], verdict.lengths[rows] = part.path, part.lengths
            verdict.token[rows] = part.token
    return verdict


def _match(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    """On a GPU a chain's samples are drawn at once; elsewhere along the path, as a cascade's parts
    draw again by the numbers of places that a step didn't reach."""
    match = longest_match if trees.is_chain and trees.tokens.is_cuda else match_along
    return match(trees, scores, draws.pick)


def is_drawn(trees: DraftTree) -> Tensor | None:
    """[B, N] bool: drawn from a proposal; None where no node was (greedy drafts have no
    distributions)."""
    if trees.proposals is None or trees.nodes == 0:
        return None
    drawn = (Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT)
    if trees.kinds is None:
        if trees.kind not in drawn:
            return None
        return torch.ones_like(trees.tokens, dtype=torch.bool)
    return (trees.kinds == drawn[0]) | (trees.kinds == drawn[1])
