"""Exact verification of chains, token by token or as a block, for all nodes at once.

Token by token, a drafted x is accepted with probability min(1, p(x) / q(x)) as long as all before
it were. On the first rejection the token is drawn from the residual max(0, p - q), normalised; if
all are accepted one more comes from p. Source: Leviathan et al. 2023, Algorithm 1 and appendix A.1;
Chen et al. 2023, Algorithm 2.

As a block, with w_0 = 1 and w_i = min(1, w_{i-1} · p(x_i) / q(x_i)), a prefix of i < γ tokens
passes with probability S_i / (S_i + 1 - w_i), S_i = Σ_x max(w_i · p(x) - q(x), 0) over the
distribution after it, and the whole chain with probability w_γ. All prefixes are tested and the
longest that passes is kept; the extra token comes from max(w_i · p - q, 0), or from p after the
whole chain. Source: Sun et al. 2025, "Block verification accelerates speculative decoding",
Algorithm 2; γ is the length of a row's chain.

A chosen token's q is a point mass; chains of which all tokens were chosen are left to
`by_own_sample`. An auxiliary node ends the chain before it.

Legend: B sequences, N chain nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree
from foretoken.verify.shared.chosen import by_own_sample
from foretoken.verify.shared.paths import path_to
from foretoken.verify.shared.residual import proposal_distributions


def token_by_token(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    """Speculative sampling: accept tokens up to the first that fails its test."""
    return by_own_sample(trees, scores, draws, _token_by_token)


def _token_by_token(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    probs = scores.probs
    proposals = proposal_distributions(trees)
    assert proposals is not None  # else `by_own_sample` has decided
    accepted = draws.accept(_ratios(trees, probs, proposals).clamp(max=1)) & trees.valid
    lengths = accepted.long().cumprod(1).sum(1)  # [B]
    owed = probs.new_ones(trees.batch)
    return _verdict(trees, probs, proposals, lengths, owed, draws)


def as_a_block(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    """Block verification: accept the longest prefix that passes its test."""
    return by_own_sample(trees, scores, draws, _as_a_block)


def _as_a_block(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    probs = scores.probs
    proposals = proposal_distributions(trees)
    assert proposals is not None  # else `by_own_sample` has decided
    joint = _joint_ratios(trees, probs, proposals)  # [B, S]
    passed = draws.accept(_chances(trees, probs, proposals, joint))  # [B, N]
    lengths = (passed * trees.depths[:, 1:]).amax(1)  # [B]
    owed = joint.gather(1, lengths[:, None])[:, 0]
    return _verdict(trees, probs, proposals, lengths, owed, draws)


def _verdict(
    trees: DraftTree, probs: Tensor, proposals: Tensor, lengths: Tensor, owed: Tensor, draws: Draws
) -> Verdict:
    """So many accepted tokens of each chain, and one more from what is left over there."""
    final = _final_distribution(trees, probs, proposals, lengths, owed)
    token = draws.pick(final, lengths[:, None])
    return Verdict(path_to(trees, lengths)[0], lengths, token[:, 0])


def _ratios(trees: DraftTree, probs: Tensor, proposals: Tensor) -> Tensor:
    """[B, N] p / q of each token; p where the token was chosen."""
    drafted = trees.tokens[..., None]
    return (probs[:, :-1].gather(-1, drafted) / proposals.gather(-1, drafted))[..., 0]


def _final_distribution(
    trees: DraftTree, probs: Tensor, proposals: Tensor, lengths: Tensor, owed: Tensor
) -> Tensor:
    """[B, 1, V] the residual of owed · p at the first rejected node; p where none was rejected."""
    rows = torch.arange(trees.batch, device=lengths.device)
    p = probs[rows, lengths]  # [B, V]
    node = lengths.clamp(max=trees.nodes - 1)  # the rejected one, if any
    rejected = ((lengths < trees.nodes) & trees.valid[rows, node])[:, None]
    # Where p and q agree up to rounding nothing is left over: a rejection there has probability 0
    # and only rounding can lead here, so p is as good a distribution as any.
    residual = (p * owed[:, None]).sub_(proposals[rows, node]).clamp_(min=0)
    whole = ~rejected | (residual.sum(-1, keepdim=True) <= 0)
    return torch.where(whole, p, residual)[:, None]


def _joint_ratios(trees: DraftTree, probs: Tensor, proposals: Tensor) -> Tensor:
    """w [B, S]: 1 at the root, 0 after the end of a chain."""
    ratio = torch.where(trees.valid, _ratios(trees, probs, proposals), 0.0).nan_to_num(0.0)
    joint = [probs.new_ones(trees.batch)]
    for node in range(trees.nodes):
        joint.append((joint[-1] * ratio[:, node]).clamp(max=1))
    return torch.stack(joint, 1)


def _chances(trees: DraftTree, probs: Tensor, proposals: Tensor, joint: Tensor) -> Tensor:
    """[B, N] the probability that each prefix passes; that of a row's whole chain is w itself."""
    owed = joint[:, 1:-1]  # the prefixes that have a node after them
    excess = (probs[:, 1:-1] * owed[..., None]).sub_(proposals[:, 1:]).clamp_(min=0).sum(-1)
    chances = (excess / (excess + (1 - owed))).nan_to_num(1.0)
    inside = trees.valid[:, 1:]  # False where the prefix is the row's whole chain
    return torch.cat([torch.where(inside, chances, owed), joint[:, -1:][:, : trees.nodes]], 1)
