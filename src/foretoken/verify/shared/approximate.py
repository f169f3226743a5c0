"""What approximate rules share: values at nodes, the accepted path, the count of strayed tokens.

A token *strays* if it is accepted where the lossless rule, with the same random numbers, would have
rejected it. For a chosen node that rule is target-only sampling (He et al. 2024, section 3.3): the
token must be the target's own sample at its parent. For a drawn node it is the test of speculative
sampling (Leviathan et al. 2023, Alg. 1), accept with probability min(1, p/q), for the node by
itself, whatever its siblings were. At temperature 0 both accept the target's likeliest token only.

Rules that read raw logits see the model's own distribution: neither temperature and truncation nor
edits of the logits (penalties, biases, banned ids), which `Scores.probs` has folded in.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree
from foretoken.verify.shared.chosen import is_drawn
from foretoken.verify.shared.paths import path_to


def verdict(
    trees: DraftTree,
    scores: Scores,
    draws: Draws,
    accepted: Tensor,
    likelihood: Tensor | None = None,
) -> Verdict:
    """Accept the longest path of `accepted` [B, N] nodes, but for tokens that may not be written;
    the target's own sample follows it.

    Of equally long paths the one with the highest sum of `likelihood` [B, N] is kept, or the first.
    """
    samples = draws.pick(scores.probs, trees.depths)  # [B, S] the target's own
    accepted = accepted & trees.valid & (at_nodes(trees, _edited(scores)) > -torch.inf)
    last = _end_of_chain(accepted) if trees.is_chain else _deepest(trees, accepted, likelihood)
    path, lengths = path_to(trees, last)
    rows = torch.arange(trees.batch, device=last.device)
    strayed = _strayed(trees, scores, draws, samples, trees.ancestors[rows, last, 1:])
    return Verdict(path, lengths, samples[rows, last], strayed)


def _edited(scores: Scores) -> Tensor:
    """[B, S, V] the logits with each sequence's edits: -inf for tokens that it may not write."""
    probs = scores.distribution
    return scores.logits if isinstance(probs, Tensor) else probs.logits


def _strayed(
    trees: DraftTree, scores: Scores, draws: Draws, samples: Tensor, kept: Tensor
) -> Tensor:
    """[B] how many of the `kept` [B, N] nodes the lossless rule would have rejected."""
    lossless = trees.tokens == samples.gather(1, trees.parent_slots)
    drawn = is_drawn(trees)
    if drawn is not None:
        tested = torch.where(kept & drawn, ratio(trees, scores.probs), 0)
        lossless = torch.where(drawn, draws.accept(tested), lossless)
    return (kept & ~lossless).sum(1)


def at_nodes(trees: DraftTree, values: Tensor) -> Tensor:
    """[B, N] each node's own entry of `values` [B, S, V], which stand at its parent's slot."""
    rows = torch.arange(trees.batch, device=values.device)[:, None]
    return values[rows, trees.parent_slots, trees.tokens]


def likeliest(trees: DraftTree, scores: Scores) -> Tensor:
    """[B, N] bool: nodes that are the target's own token at temperature 0."""
    return at_nodes(trees, scores.probs) > 0.5


def within_top(trees: DraftTree, logits: Tensor, count: int) -> Tensor:
    """[B, N] bool: among the `count` likeliest tokens at the parent; ties at the edge are not."""
    if count >= logits.shape[-1]:
        return torch.ones_like(trees.tokens, dtype=torch.bool)
    edge = logits.topk(count + 1).values[..., -1]  # [B, S] the first one outside
    return at_nodes(trees, logits) > edge.gather(1, trees.parent_slots)


def ratio(trees: DraftTree, probs: Tensor, lenience: float = 1.0) -> Tensor:
    """[B, N] min(1, p / (lenience · q)) of each node's token; a chosen token's q is 1."""
    p = at_nodes(trees, probs)
    q = torch.ones_like(p)
    drawn = is_drawn(trees)
    if drawn is not None and trees.proposals is not None:
        batch = torch.arange(trees.batch, device=p.device)[:, None]
        node = torch.arange(trees.nodes, device=p.device)
        row = node.expand(trees.batch, -1) if trees.rows is None else trees.rows
        q = torch.where(drawn, trees.proposals[batch, row, trees.tokens], q)
    return (p / (lenience * q)).nan_to_num(0.0).clamp(max=1)  # 0 / 0: padding


def _end_of_chain(accepted: Tensor) -> Tensor:
    """[B] the last slot before the first node that is not accepted."""
    return accepted.long().cumprod(1).sum(1)


def _deepest(trees: DraftTree, accepted: Tensor, likelihood: Tensor | None) -> Tensor:
    """[B] the slot at the end of the longest path of accepted nodes from the root."""
    rejected = torch.cat([accepted.new_zeros(trees.batch, 1), ~accepted], 1)  # [B, S]
    alive = ~(trees.ancestors & rejected[:, None, :]).any(-1)  # [B, S]
    depth = torch.where(alive, trees.depths, -1)
    if likelihood is None:
        return depth.argmax(1)
    along = torch.where(trees.ancestors[:, :, 1:], likelihood[:, None, :], 0).sum(-1)  # [B, S]
    floor = torch.finfo(along.dtype).min
    value = along.nan_to_num(floor, neginf=floor)
    return value.masked_fill(depth < depth.amax(1, keepdim=True), -torch.inf).argmax(1)
