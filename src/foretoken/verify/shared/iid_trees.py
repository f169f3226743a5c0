"""Verification of trees of independent draws, whose equal branches are followed together.

Siblings that drew the same token stand for the same text, so after such a token the children of all
of them are candidates for the next one, all drawn from one distribution (SpecTr: Sun et al. 2023,
section 5 and Algorithm 3, which keeps the drafts that begin with what was accepted).

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict
from foretoken.tree import DraftTree
from foretoken.verify.shared.paths import longest_match, path_to


class Choice(NamedTuple):
    """Several i.i.d. draws for one place: the target's distribution [B, V], the proposal [B, V]
    that they came from, and tokens [B, N], of which those at `open` [B, N] are the draws, in order.
    """

    distribution: Tensor
    proposal: Tensor
    tokens: Tensor
    open: Tensor


Rule = Callable[[Choice], tuple[Tensor, Tensor]]
"""-> the probability [B, N] to accept each draw when those before it were rejected, and the
distribution [B, V] of the token if all are, of any mass."""


def descend(trees: DraftTree, scores: Scores, draws: Draws, rule: Rule) -> Verdict:
    """Accept one token a depth by `rule`, as long as one is accepted.

    Without proposals every node was chosen, as drafters do at temperature 0, and the target's own
    samples decide.
    """
    if trees.proposals is None:
        return longest_match(trees, scores, draws.pick)
    probs = scores.probs
    rows = torch.arange(trees.batch, device=probs.device)
    last = torch.zeros_like(rows)  # [B] the first slot of the accepted branches
    alive = last[:, None] == torch.arange(trees.nodes + 1, device=probs.device)  # [B, S]
    distribution = probs[:, 0]
    for _ in trees.widths:
        open_ = alive.gather(1, trees.parent_slots) & trees.valid  # [B, N]
        chance, rest = rule(Choice(probs[rows, last], _proposal(trees, open_), trees.tokens, open_))
        passed = draws.accept(torch.where(open_, chance, 0.0))
        distribution = torch.where(open_.any(1, keepdim=True), rest, distribution)
        token = trees.tokens.gather(1, passed.long().argmax(1, keepdim=True))
        same = open_ & (trees.tokens == token) & passed.any(1, keepdim=True)
        last = torch.where(same.any(1), same.long().argmax(1) + 1, last)
        distribution = torch.where(same.any(1, keepdim=True), probs[rows, last], distribution)
        alive = torch.cat([same.new_zeros(trees.batch, 1), same], 1)
    path, lengths = path_to(trees, last)
    return Verdict(path, lengths, draws.pick(distribution[:, None], lengths[:, None])[:, 0])


def _proposal(trees: DraftTree, open_: Tensor) -> Tensor:
    """[B, V] the distribution of the open nodes, which all have the same one."""
    assert trees.proposals is not None
    first = open_.long().argmax(1)
    rows = torch.arange(trees.batch, device=first.device)
    row = first if trees.rows is None else trees.rows[rows, first]
    return trees.proposals[rows, row]
