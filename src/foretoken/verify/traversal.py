"""Traversal verification: test whole paths from the leaves to the root, siblings in draw order.

A node *owes* its distribution with the probability that the rule must still write it there, as
`shared/residual.py` defines. Every node is tested once, when all its children have been rejected:
it passes with the probability that it still owes. A leaf owes min(1, r(x) / q(x)), where r is what
its parent owed when the leaf was offered. The first node that passes is accepted with its path, and
the extra token comes from what it owes. The root owes its distribution with probability 1. Source:
Weng et al. 2025, "Traversal verification for speculative tree decoding", Algorithm 1; derived here
from one invariant: a node's subtree writes the distribution after the node with the probability
that the node owes.

What nodes owe depends on the tree alone and not on earlier outcomes, so it is computed depth by
depth for all nodes at once, and all tests are made in one call. On a chain this is block
verification, computed by `shared/chains.py`.

Legend: B sequences, N tree nodes, S = N + 1 slots, M slots of one depth, V vocabulary, K siblings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.chains import as_a_block
from foretoken.verify.shared.chosen import by_own_sample
from foretoken.verify.shared.paths import path_to
from foretoken.verify.shared.residual import Residual, final_residual, offers

_AT_ONCE = 1 << 22  # probabilities processed at a time: few enough for the processor's caches


@dataclass(frozen=True)
class Traversal(Verifier):
    """The exact rule for trees of drawn or chosen nodes, from the leaves to the root."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Weng et al. 2025, Alg. 1"
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.PADDING}

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        if trees.is_chain:
            return as_a_block(trees, scores, draws)
        return by_own_sample(trees, scores, draws, _from_the_leaves)


def _from_the_leaves(trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
    first, final = _owed(trees, scores.probs)
    passed = draws.accept(final[:, 1:])  # [B, N]
    order = torch.where(passed, _test_order(trees), trees.nodes)
    order = torch.cat([order.new_full((trees.batch, 1), trees.nodes), order], 1)  # the root last
    last = order.argmin(1)  # [B]
    path, lengths = path_to(trees, last)
    owed = first.gather(1, last[:, None])[:, 0]
    token = draws.pick(final_residual(trees, scores.probs, last, owed)[:, None], lengths[:, None])
    return Verdict(path, lengths, token[:, 0])


def _owed(trees: DraftTree, probs: Tensor) -> tuple[Tensor, Tensor]:
    """[B, S] the probability that each slot owes before its children are offered, and after all of
    them are rejected."""
    first = probs.new_zeros(trees.batch, trees.nodes + 2)  # the last column is for no child
    first[:, 0] = 1
    final = first.new_full(first.shape, -1.0)
    for rows, slots, width in _levels(trees, max(1, _AT_ONCE // probs.shape[-1])):
        residual = Residual(probs[rows, slots], first[rows, slots])
        for offer in offers(trees, rows, slots, width):
            place = torch.where(offer.slots > 0, offer.slots, trees.nodes + 1)
            first[rows, place] = residual.chance(offer)
            residual.reject(offer)
        final[rows, slots] = residual.owed
    first = first[:, :-1]
    final = final[:, :-1]
    return first, torch.where(final < 0, first, final)


def _levels(trees: DraftTree, most: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """The slots that have children, depth by depth from the root: (rows [M], slots [M], most
    children of a slot), at most `most` slots at a time."""
    if not trees.widths:
        return
    rows, slots = trees.children[:, :, 0].nonzero().unbind(1)
    depths = trees.depths[rows, slots]
    order = depths.argsort(stable=True)
    counts: list[int] = depths.bincount().tolist()
    levels = zip(rows[order].split(counts), slots[order].split(counts), strict=True)
    for (level_rows, level_slots), width in zip(levels, trees.widths, strict=False):
        parts = zip(level_rows.split(most), level_slots.split(most), strict=True)
        for part_rows, part_slots in parts:
            yield part_rows, part_slots, width


def _test_order(trees: DraftTree) -> Tensor:
    """[B, N] each node's place in the order of tests: after its descendants, and after its earlier
    siblings and theirs."""
    sizes = trees.ancestors.long().sum(1)[:, 1:]  # [B, N] nodes of each subtree
    parents = trees.parent_slots
    earlier = (parents[:, :, None] == parents[:, None, :]).tril(-1)  # [B, N, N] siblings
    before = (earlier * sizes[:, None, :]).sum(-1)
    ancestors = trees.ancestors[:, 1:, 1:]
    return (ancestors * before[:, None, :]).sum(-1) + sizes - 1
