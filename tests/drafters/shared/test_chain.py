"""Chains that a model samples: their proposals, and models that predict all places at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretoken import SamplingParams
from foretoken.drafters.shared.chain import AllAtOnce
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import KeyedDraws
from foretoken.length import Cumulative
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, logits_after
from foretoken.tree import Kind


def test_proposals_are_what_was_drawn_from(pair: Pair) -> None:
    """Each token comes with the model's distribution after the tokens before it, under the
    request's own parameters; a row without room drafts nothing."""
    params = SamplingParams(temperature=0.7, top_k=5)
    sequences = [Sequence.start(text, params) for text in ([5, 9, 2], [40, 3])]
    drafter = SmallLM(pair.draft, 3)
    drafter.bind(ModelTarget(pair.target, 2, 64))
    for sequence in sequences:
        drafter.begin(sequence)
    tree = drafter.draft(sequences, [3, 0], KeyedDraws([1, 2], [3, 2], torch.device("cpu")))
    assert tree.kind == Kind.INDEPENDENT and tree.counts == [3, 0]
    assert tree.proposals is not None
    text = [5, 9, 2]
    for place, token in enumerate(tree.tokens[0].tolist()):
        logits = logits_after(pair.draft, text) / 0.7
        best = logits.topk(5).indices
        expected = torch.zeros_like(logits)
        expected[best] = logits[best].softmax(-1)
        torch.testing.assert_close(tree.proposals[0, place], expected)
        assert expected[token] > 0
        text.append(token)


def test_a_rule_is_asked_about_drafts_that_may_go_on(pair: Pair) -> None:
    """What it remembers of a draft, and so the next one's length, doesn't depend on who is beside
    it."""

    def threshold(budgets: list[int]) -> float:
        texts = ([5, 9, 2], [40, 3])[: len(budgets)]
        sequences = [Sequence.start(text, SamplingParams()) for text in texts]
        rule = Cumulative(4, 1e-6, after_error="confidence")
        drafter = SmallLM(pair.draft, num_assistant_tokens_schedule=rule)
        drafter.bind(ModelTarget(pair.target, 2, 64))
        for sequence in sequences:
            drafter.begin(sequence)
        draws = KeyedDraws([1, 2], [3, 2], torch.device("cpu")).take(range(len(budgets)))
        assert drafter.draft(sequences, budgets, draws).counts == budgets
        rule.observe(sequences[0], budgets[0], 1)
        return rule.threshold(sequences[0])

    assert threshold([2]) == threshold([2, 4]) == 1e-6
    assert threshold([3]) == pytest.approx(threshold([3, 4])) and threshold([3]) > 1e-6


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_shorter_drafts_processor_is_called_for_its_own_tokens(
    pair: Pair, temperature: float
) -> None:
    """Though the batch goes on; what is drafted is what a draft alone has."""
    seen: list[list[int]] = []

    def spy(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids[0].tolist())
        return scores / 2

    spied = SamplingParams(temperature=temperature, logits_processors=[spy])
    params = (spied, SamplingParams(temperature=temperature))
    drafts = []
    for count in (1, 2):
        texts = zip(([5, 9, 2], [40, 3]), params, strict=True)
        sequences = [Sequence.start(text, own) for text, own in texts][:count]
        drafter = SmallLM(pair.draft, 3)
        drafter.bind(ModelTarget(pair.target, 2, 64))
        for sequence in sequences:
            drafter.begin(sequence)
        draws = KeyedDraws([1, 2][:count], [3, 2][:count], torch.device("cpu"))
        tree = drafter.draft(sequences, [2, 3][:count], draws)
        assert tree.counts == [2, 3][:count]
        drafts.append(tree.tokens[0, :2].tolist())
    assert drafts[0] == drafts[1]
    assert seen == 2 * [[5, 9, 2], [5, 9, 2, drafts[0][0]]]


class Numbered(AllAtOnce):
    """Predicts the number of each place."""

    passes = 0

    def ahead(self, sequences: object) -> Tensor:
        self.passes += 1
        return torch.arange(3.0)[None, :, None]


def test_all_places_come_from_one_pass() -> None:
    """Whatever the tokens are; the next draft runs a new pass."""
    model = Numbered()
    for passes in (1, 2):
        logits = [model.root_logits([])]
        logits += [model.next_logits([], torch.tensor([token])) for token in (7, 8)]
        assert [each.item() for each in logits] == [0.0, 1.0, 2.0]
        assert model.passes == passes
