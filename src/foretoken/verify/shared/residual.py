"""The residual of a distribution after drafted tokens were rejected: the arithmetic of exact rules.

A node owes the distribution p of the next token with probability `owed`: the sub-probability r =
owed · p. A child x that was drawn from q has the chance min(1, r(x) / q(x)) to be written, which
pays min(r, q) on average. When it is rejected, max(r - q, 0) is still owed, out of the probability
1 - owed + Σ max(r - q, 0) to get there; dividing by that gives the next r. So

    r <- max(r - q, 0) / (1 - owed + S),   owed <- S / (1 - owed + S),   S = Σ max(r - q, 0).

With owed = 1 this is the recursive rejection of SpecInfer (Miao et al. 2024, Algorithm 2), on a
chain the residual of block verification (Sun et al. 2025, Algorithm 2), and in general that of
traversal verification (Weng et al. 2025). A chosen token is a point mass q. A draw without
replacement comes from q without its earlier siblings, renormalised (Sequoia, Chen et al. 2024); if
nothing of q is left the child is never accepted, wherever it came from, which is exact too.

Legend: B sequences, N tree nodes, M slots processed together, V vocabulary, K siblings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretoken.tree import DraftTree, Kind


@dataclass(frozen=True)
class Offer:
    """The next child of each of M slots: its token, and how it was chosen or drawn."""

    trees: DraftTree
    rows: Tensor  # [M] sequences
    slots: Tensor  # [M] the children, 0 where there is none
    token: Tensor  # [M]
    earlier: Tensor  # [M, k] tokens of the siblings before

    @property
    def may_be_drawn(self) -> bool:
        """Whether there may be drawn tokens among them; costs no transfer to the host."""
        trees = self.trees
        return trees.proposals is not None and (
            trees.kinds is not None or trees.kind != Kind.CHOSEN
        )

    @property
    def may_be_chosen(self) -> bool:
        return self.trees.kinds is not None or not self.may_be_drawn

    @cached_property
    def exists(self) -> Tensor:
        return self.slots > 0

    @cached_property
    def drawn(self) -> Tensor:
        """[M] tokens that were drawn; False where there is no child."""
        if self.trees.kinds is None:
            return self.exists if self.may_be_drawn else torch.zeros_like(self.exists)
        return self.exists & (self.trees.kinds[self.rows, self._node] != Kind.CHOSEN)

    @cached_property
    def chosen(self) -> Tensor:
        """[M] tokens that are a point mass; False where there is no child."""
        return self.exists & ~self.drawn if self.may_be_drawn else self.exists

    @cached_property
    def _node(self) -> Tensor:
        return (self.slots - 1).clamp(min=0)

    @cached_property
    def _row(self) -> Tensor:
        return self._node if self.trees.rows is None else self.trees.rows[self.rows, self._node]

    @property
    def _thinned(self) -> bool:
        """Whether earlier siblings may have been removed from the distribution before the draw."""
        without = self.trees.kinds is not None or self.trees.kind == Kind.WITHOUT_REPLACEMENT
        return without and self.earlier.shape[1] > 0

    @cached_property
    def distribution(self) -> Tensor:
        """[M, V] what drawn tokens came from, in proportion; a copy."""
        assert self.trees.proposals is not None
        distribution = self.trees.proposals[self.rows, self._row]
        if not self._thinned:
            return distribution
        if self.trees.kinds is None:
            return distribution.scatter_(1, self.earlier, 0.0)
        without = self.trees.kinds[self.rows, self._node] == Kind.WITHOUT_REPLACEMENT
        kept = distribution.gather(1, self.earlier).masked_fill_(without[:, None], 0.0)
        return distribution.scatter_(1, self.earlier, kept)

    @cached_property
    def remaining(self) -> Tensor:
        """[M] the mass of `distribution`; 1 where nothing was removed from it."""
        if self._thinned:
            return self.distribution.sum(-1)
        assert self.trees.proposals is not None
        return self.trees.proposals.new_ones(len(self.slots))

    @cached_property
    def probability(self) -> Tensor:
        """[M] the probability with which a drawn token was drawn; infinite if nothing was left."""
        assert self.trees.proposals is not None
        drawn_with = self.trees.proposals[self.rows, self._row, self.token] / self.remaining
        return (
            torch.where(self.remaining > 0, drawn_with, torch.inf) if self._thinned else drawn_with
        )


def offers(trees: DraftTree, rows: Tensor, slots: Tensor, width: int) -> Iterator[Offer]:
    """The first `width` valid children of M slots, one after the other, in draw order."""
    children = trees.children[rows, slots]  # [M, K]
    if not width:
        return
    tokens = trees.tokens[rows[:, None], (children - 1).clamp(min=0)]
    for rank in range(width):
        yield Offer(trees, rows, children[:, rank], tokens[:, rank], tokens[:, :rank])


class Residual:
    """r = owed · distribution / mass at M slots; `distribution` [M, V] is a copy and changes in
    place."""

    def __init__(self, distribution: Tensor, owed: Tensor | None = None) -> None:
        self.distribution = distribution
        self.mass = distribution.new_ones(len(distribution))
        self.owed = self.mass if owed is None else owed

    def chance(self, offer: Offer) -> Tensor:
        """[M] the probability to accept each offered token, 0 where there is none."""
        owed = self.owed * self.distribution.gather(1, offer.token[:, None])[:, 0] / self.mass
        if offer.may_be_drawn:
            owed = torch.where(offer.drawn, owed / offer.probability, owed)
        chance = torch.where(offer.exists, owed, 0.0)
        return chance.nan_to_num_(0.0, posinf=1.0).clamp_(max=1)

    def reject(self, offer: Offer) -> None:
        """Change to what is owed once these tokens, and all below them, have been rejected."""
        before = self.mass
        if offer.may_be_chosen:
            self._remove(offer.token, offer.chosen)
        if offer.may_be_drawn:
            self._subtract(offer)
        excess = self.owed * (self.mass / before).nan_to_num_(0.0, posinf=0.0)  # S
        owed = (excess / (excess + (1 - self.owed))).nan_to_num_(0.0, posinf=0.0)
        self.owed = torch.where(offer.exists, owed, self.owed)

    def _remove(self, token: Tensor, chosen: Tensor) -> None:
        """Subtract a point mass, which removes its token and no other: O(M)."""
        value = self.distribution.gather(1, token[:, None])[:, 0]
        removed = torch.where(chosen, value, 0.0)
        self.distribution.scatter_(1, token[:, None], (value - removed)[:, None])
        self.mass = (self.mass - removed).clamp_(min=0)

    def _subtract(self, offer: Offer) -> None:
        """distribution <- max(distribution - q · mass / owed, 0), which leaves the scale of
        `distribution` alone."""
        rate = self.mass / (self.owed * offer.remaining)  # infinite where nothing is left of q
        rate = torch.where(offer.drawn, rate, 0.0).nan_to_num_(0.0, posinf=0.0)
        self.distribution.addcmul_(offer.distribution.to(rate), rate[:, None], value=-1).clamp_(
            min=0
        )
        self.mass = torch.where(offer.drawn, self.distribution.sum(-1), self.mass)


def final_residual(
    trees: DraftTree, probs: Tensor, slots: Tensor, owed: Tensor | None = None
) -> Tensor:
    """[B, V] the distribution, of any mass, that remains at slots [B] when all their children have
    been rejected.

    Where p and q agree up to rounding nothing is left over: a rejection there has probability 0 and
    only rounding can lead here, so p is as good a distribution as any.
    """
    rows = torch.arange(trees.batch, device=slots.device)
    residual = Residual(probs[rows, slots], owed)
    for offer in offers(trees, rows, slots, max(trees.widths, default=0)):
        residual.reject(offer)
    # `mass` may be a rounding error above 0.
    nothing = residual.distribution.amax(-1, keepdim=True) <= 0
    return torch.where(nothing, probs[rows, slots], residual.distribution)


def proposal_distributions(trees: DraftTree) -> Tensor | None:
    """[B, N, V] the distribution that each node of a chain came from; None where every one was
    chosen."""
    if trees.proposals is None or (trees.kinds is None and trees.kind == Kind.CHOSEN):
        return None
    if trees.rows is None:
        distributions = trees.proposals[:, : trees.nodes]
    else:
        batch = torch.arange(trees.batch, device=trees.rows.device)[:, None]
        distributions = trees.proposals[batch, trees.rows]
    if trees.kinds is None:
        return distributions
    points = torch.zeros_like(distributions).scatter_(-1, trees.tokens[..., None], 1.0)
    return torch.where((trees.kinds == Kind.CHOSEN)[..., None], points, distributions)
