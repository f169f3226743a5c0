"""Mistakes that rules and drafters are prone to; each changes the distribution of the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.protocols import Verifier
from foretoken.testing import Drawn, Pair, TableModel
from foretoken.tree import DraftTree, Kind
from foretoken.verify import k_seq, multi_candidate, traversal
from foretoken.verify.block import Block
from foretoken.verify.k_seq import KSeq
from foretoken.verify.lenience import Lenience
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.shared import chains, residual
from foretoken.verify.shared.residual import Offer
from foretoken.verify.speculative import Speculative
from foretoken.verify.traversal import Traversal
from foretoken.verify.typical import Typical

Patch = Callable[[pytest.MonkeyPatch], None]
TOKEN_RESIDUAL = chains._final_distribution
CHAIN, TWINS, FORK = (1, 1), (2,), (2, 1)
REST = Kind.WITHOUT_REPLACEMENT


def pair() -> Pair:
    """A drafter too sure of one token and too timid with two, so that residuals have a shape."""
    target = torch.tensor([[0.4, 0.2, 0.4], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]])
    draft = torch.tensor([[0.35, 0.1, 0.55], [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]])
    return Pair(TableModel.markov(target), TableModel.markov(draft))


class Changed(Drawn):
    """Drawn trees that are changed before they are handed over."""

    def change(self, tree: DraftTree) -> DraftTree:
        raise NotImplementedError

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        return self.change(tree) if tree.nodes else tree


class Deduplicated(Changed):
    """A sibling that repeats an earlier one is dropped."""

    def change(self, tree: DraftTree) -> DraftTree:
        tree.kinds = torch.full(tree.tokens.shape, int(tree.kind), dtype=torch.int8)
        tree.kinds[:, 1][tree.tokens[:, 1] == tree.tokens[:, 0]] = int(Kind.PADDING)
        return tree


class Reordered(Changed):
    """Siblings stand in the order of their probabilities, not of their draws."""

    def change(self, tree: DraftTree) -> DraftTree:
        assert tree.proposals is not None
        share = tree.proposals[:, 0].gather(1, tree.tokens)
        tree.tokens = tree.tokens.gather(1, share.argsort(dim=1, descending=True, stable=True))
        return tree


class CalledIndependent(Changed):
    """Siblings drawn without replacement, presented as independent ones."""

    def change(self, tree: DraftTree) -> DraftTree:
        tree.kind = Kind.INDEPENDENT
        return tree


class Thinned(CalledIndependent):
    """The same, from a drafter that declares independent draws."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        self.kind = Kind.WITHOUT_REPLACEMENT
        return super().draft(sequences, budgets, draws)


class Likeliest(Changed):
    """The drafter's likeliest tokens, presented as draws from its softmax."""

    def change(self, tree: DraftTree) -> DraftTree:
        assert tree.proposals is not None
        tree.tokens = tree.proposals[:, 0].topk(tree.nodes).indices
        return tree


class Mask(Changed):
    """The chain's second node is auxiliary: a token that stands for a question, not an answer."""

    def change(self, tree: DraftTree) -> DraftTree:
        tree.kinds = torch.tensor([[Kind.INDEPENDENT, Kind.AUXILIARY]]).to(torch.int8)
        tree.kinds = tree.kinds[:, : tree.nodes].expand(tree.batch, -1)
        tree.tokens[:, 1:] = 0
        return tree


def replaced(where: Any, name: str, wrong: Any) -> Patch:
    """One name of a module or class stands for something else."""
    return lambda patch: patch.setattr(where, name, wrong)


class Stale(residual.Residual):
    """Nothing is subtracted for a rejected sibling."""

    def reject(self, offer: Offer) -> None:
        pass


class Breaking:
    """Tests after the first failed one don't count."""

    def __init__(self, own: Draws) -> None:
        self.own = own

    def accept(self, probability: Tensor, tests: Tensor | None = None) -> Tensor:
        return self.own.accept(probability, tests).long().cumprod(1).bool()

    def pick(self, distribution: Tensor, depths: Tensor) -> Tensor:
        return self.own.pick(distribution, depths)


def early_break(patch: pytest.MonkeyPatch) -> None:
    """Block verification stops at the first prefix that fails."""
    own = Block.__call__
    patch.setattr(
        Block,
        "__call__",
        lambda self, trees, scores, draws: own(self, trees, scores, Breaking(draws)),
    )


def token_ratio(patch: pytest.MonkeyPatch) -> None:
    """Block verification with each token's own ratio instead of the prefix's."""
    own = chains._joint_ratios

    def wrong(trees: DraftTree, probs: Tensor, distributions: Tensor | None) -> Tensor:
        assert distributions is not None
        joint = own(trees, probs, distributions).clone()
        drafted = trees.tokens[..., None]
        joint[:, 1:] = (probs[:, :-1].gather(-1, drafted) / distributions.gather(-1, drafted))[
            ..., 0
        ]
        return joint.clamp(max=1)

    patch.setattr(chains, "_joint_ratios", wrong)


def plain_residual(patch: pytest.MonkeyPatch) -> None:
    """K-SEQ's replacement comes from max(p - q, 0), as with one draw."""
    own = k_seq._k_seq

    def wrong(choice: Any) -> tuple[Tensor, Tensor]:
        return own(choice)[0], (choice.distribution - choice.proposal).clamp(min=0)

    patch.setattr(k_seq, "_k_seq", wrong)


def other_branch(patch: pytest.MonkeyPatch) -> None:
    """Once the second sibling is accepted, the first one's children are offered."""
    own = residual.offers

    def wrong(trees: DraftTree, rows: Tensor, slots: Tensor, width: int) -> Any:
        return own(trees, rows, torch.where(slots == 2, 1, slots), width)

    patch.setattr(multi_candidate, "offers", wrong)


def all_valid(patch: pytest.MonkeyPatch) -> None:
    """Auxiliary nodes may be accepted."""
    patch.setattr(
        DraftTree, "valid", property(lambda self: torch.ones_like(self.tokens, dtype=torch.bool))
    )


@dataclass(frozen=True)
class RuleMutant:
    """A rule on trees of a shape, drawn; and the mistake in it (`patch`, `wrong_rule`) or in the
    drafter (`wrong`)."""

    rule: Verifier
    branches: tuple[int, ...]
    kind: Kind = Kind.INDEPENDENT
    patch: Patch = lambda patch: None
    wrong: type[Drawn] = Drawn
    wrong_rule: Verifier | None = None


MUTANTS = {
    "siblings deduplicated": RuleMutant(MultiCandidate(), TWINS, wrong=Deduplicated),
    "siblings deduplicated before traversal": RuleMutant(Traversal(), TWINS, wrong=Deduplicated),
    "siblings reordered by value": RuleMutant(MultiCandidate(), TWINS, wrong=Reordered),
    "without replacement called independent": RuleMutant(
        MultiCandidate(), TWINS, REST, wrong=CalledIndependent
    ),
    "without replacement fed to k-seq": RuleMutant(KSeq(), TWINS, wrong=Thinned),
    "likeliest called drawn": RuleMutant(MultiCandidate(), TWINS, wrong=Likeliest),
    "q not renormalised": RuleMutant(
        MultiCandidate(),
        TWINS,
        REST,
        replaced(Offer, "remaining", property(lambda self: torch.ones(len(self.slots)).double())),
    ),
    "q keeps the earlier siblings": RuleMutant(
        MultiCandidate(), TWINS, REST, replaced(Offer, "_thinned", False)
    ),
    "residual stale after a sibling": RuleMutant(
        MultiCandidate(), TWINS, patch=replaced(multi_candidate, "Residual", Stale)
    ),
    "replacement from p": RuleMutant(
        MultiCandidate(),
        TWINS,
        patch=replaced(
            multi_candidate,
            "final_residual",
            lambda trees, probs, slots: probs[torch.arange(trees.batch), slots],
        ),
    ),
    "children of another branch": RuleMutant(MultiCandidate(), FORK, patch=other_branch),
    "gamma is 1": RuleMutant(
        KSeq(),
        TWINS,
        patch=replaced(k_seq, "_least_gamma", lambda p, q, count: torch.ones_like(count)),
    ),
    "k-seq with the residual of one draw": RuleMutant(KSeq(), TWINS, patch=plain_residual),
    "block breaks early": RuleMutant(Block(), CHAIN, patch=early_break),
    "block with a token's residual": RuleMutant(
        Block(),
        CHAIN,
        patch=replaced(
            chains,
            "_final_distribution",
            lambda trees, probs, proposals, lengths, owed: TOKEN_RESIDUAL(
                trees, probs, proposals, lengths, torch.ones_like(owed)
            ),
        ),
    ),
    "block with a token's ratio": RuleMutant(Block(), CHAIN, patch=token_ratio),
    "traversal's parent not updated": RuleMutant(
        Traversal(), TWINS, patch=replaced(traversal, "Residual", Stale)
    ),
    "traversal from the root": RuleMutant(
        Traversal(),
        FORK,
        patch=replaced(traversal, "_test_order", lambda trees: trees.depths[:, 1:]),
    ),
    "auxiliary tokens accepted": RuleMutant(Block(), CHAIN, wrong=Mask, patch=all_valid),
    "lenience called lossless": RuleMutant(Speculative(), CHAIN, wrong_rule=Lenience(0.5)),
    "typical acceptance called lossless": RuleMutant(Speculative(), (1,), wrong_rule=Typical()),
}
