"""The checks that authors of drafters call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.testing import Drawn, check_drafter


def test_check_drafter_passes_honest_ones() -> None:
    """One that copies and one that draws."""
    check_drafter(lambda pair: PromptLookup(3))
    check_drafter(lambda pair: SmallLM(pair.draft, 2))


class Late(PromptLookup):
    """Knows how much it drafts once it is bound, as a drafter that reads a checkpoint."""

    def bind(self, access):  # type: ignore[no-untyped-def]
        super().bind(access)
        self._nodes = self.num_speculative_tokens

    @property
    def nodes(self) -> int:
        return self._nodes


def test_check_drafter_asks_for_nodes_after_bind() -> None:
    check_drafter(lambda pair: Late(2))


class Dishonest(SmallLM):
    """Says that its tokens were drawn from a flat distribution."""

    def draft(self, sequences, budgets, draws):  # type: ignore[no-untyped-def]
        tree = super().draft(sequences, budgets, draws)
        if tree.proposals is not None:
            tree.proposals = torch.full_like(tree.proposals, 1 / tree.proposals.shape[-1])
        return tree


def test_check_drafter_fails_a_dishonest_one() -> None:
    """The distribution is off, and it says by how much."""
    with pytest.raises(AssertionError, match="is off by"):
        check_drafter(lambda pair: Dishonest(pair.draft, 2))


class Choosy(Drawn):
    """Leaves out its third token where that is an unlikely one."""

    def draft(self, sequences, budgets, draws):  # type: ignore[no-untyped-def]
        tree = super().draft(sequences, budgets, draws)
        if tree.nodes < 3 or tree.proposals is None:
            return tree
        third = [tree.proposals[row, 2, tree.tokens[row, 2]] > 0.4 for row in range(tree.batch)]
        return replace(tree, counts=[3 if likely else 2 for likely in third])


def test_check_drafter_looks_at_the_third_node() -> None:
    with pytest.raises(AssertionError, match="is off by"):
        check_drafter(lambda pair: Choosy(pair.draft, (1, 1, 1)))
