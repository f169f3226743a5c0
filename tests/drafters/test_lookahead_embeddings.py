"""PaSS: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.drafters.lookahead_embeddings import LookaheadEmbeddings, LookaheadModel, PassTokens
from foretoken.draws import GreedyDraws
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.tree import DraftTree
from foretoken.verify.speculative import Speculative
from lessons import GREEDY, check_estimate, seeded


@pytest.mark.parametrize("most", [4, 2])
def test_pass_estimates_what_is_served(small: Pair, records: Records, most: int) -> None:
    """Chains of two lengths."""
    module = seeded(PassTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    drafter = LookaheadEmbeddings(module, num_speculative_tokens=most)
    total = check_estimate(drafter, module, small.target, records, Speculative())
    assert total.acceptance_length > 1.9 and total.accepted[1] > 0


@torch.inference_mode()
def test_embeddings_beyond_the_draft_are_not_read(
    small: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter draft is the beginning of a long one, from a pass over fewer embeddings."""
    module = seeded(PassTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    read: list[int] = []
    known = ModelTarget.draft_logits

    def noted(self: ModelTarget, sequences: Any, trees: DraftTree) -> Any:
        read.append(trees.nodes)
        return known(self, sequences, trees)

    monkeypatch.setattr(ModelTarget, "draft_logits", noted)
    drafts = []
    for most in (4, 3, 2, 1):
        drafter, target = LookaheadEmbeddings(module, most), ModelTarget(small.target, 1, 64)
        target.bind(drafter)
        sequence = Sequence.start([7], GREEDY)
        target.begin(sequence)
        drafts.append(drafter.draft([sequence], [9], GreedyDraws()).tokens[0].tolist())
    assert read == [3, 2, 1, 1]
    assert drafts == [drafts[0][:most] for most in (4, 3, 2, 1)]


@torch.inference_mode()
def test_embeddings_stand_after_another_parts(small: Pair) -> None:
    """A draft reads its own, whatever was given to the target before them."""
    module = seeded(PassTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    drafts = []
    for before in (0, 2):
        drafter, target = LookaheadEmbeddings(module), ModelTarget(small.target, 1, 64)
        target.extra_tokens(torch.randn(before, 32).double())
        target.bind(drafter)
        sequence = Sequence.start([7], GREEDY)
        target.begin(sequence)
        drafts.append(drafter.draft([sequence], [9], GreedyDraws()).tokens.tolist())
    assert drafts[0] == drafts[1] and len(drafts[0][0]) == 4


def test_room_where_the_context_ends(small: Pair) -> None:
    model = LookaheadModel(seeded(PassTokens, small), ModelTarget(small.target, 1, 10), 4)
    texts = [Sequence.start([1] * length, GREEDY) for length in (3, 8, 10, 11)]
    assert [model.room(text) for text in texts] == [4, 3, 1, 0]
