"""Chains that a model samples: their proposals, and models that predict all places at once."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.shared.chain import AllAtOnce, ChainModel, ScheduledChain, WithModels
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import KeyedDraws
from foretoken.length import Confidence, Cumulative, ExpectedGain, Fixed
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, logits_after
from foretoken.tree import Kind, empty


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


def test_a_schedules_options() -> None:
    """They reach the rule that has them; a rule that is given whole takes none."""
    assert ScheduledChain().rule(3) == Fixed(3)
    sure = ScheduledChain(
        num_assistant_tokens_schedule="confidence", assistant_confidence_threshold=0.7
    )
    assert sure.rule(3) == Confidence(3, 0.7)
    gain = ScheduledChain(num_assistant_tokens_schedule="expected_gain")
    assert gain.rule(3, draft_cost=0.5) == ExpectedGain(3, draft_cost=0.5)
    with pytest.raises(ForetokenError, match="draft_cost has no meaning"):
        sure.rule(3, draft_cost=0.5)
    given = ScheduledChain(
        num_assistant_tokens_schedule=Fixed(3), assistant_confidence_threshold=0.7
    )
    with pytest.raises(ForetokenError, match="to the length rule itself"):
        given.rule(3)


class Noted:
    """A model that notes what it is told of."""

    def __init__(self, calls: list[tuple[str, object]]) -> None:
        self.calls = calls

    def begin(self, sequence: object) -> None:
        self.calls.append(("begin", sequence))

    def follow(self, sequences: object, steps: object) -> None:
        self.calls.append(("follow", sequences))

    def fork(self, sequence: object, copy: object) -> None:
        self.calls.append(("fork", copy))

    def end(self, sequence: object) -> None:
        self.calls.append(("end", sequence))


class Two(WithModels):
    """A drafter with two models."""

    def __init__(self, models: Seq[Any]) -> None:
        self.models = models

    @property
    def followers(self) -> Seq[ChainModel]:
        return self.models


def test_every_model_follows() -> None:
    """Each hears of every sequence that comes, grows, is copied and goes."""
    calls: tuple[list[tuple[str, object]], list[tuple[str, object]]] = ([], [])
    drafter = Two([Noted(each) for each in calls])
    one, two = (Sequence.start([1], SamplingParams()) for _ in range(2))
    drafter.begin(one)
    drafter.observe([one], [])
    drafter.fork(one, two)
    drafter.end([one, two])
    told = [("begin", one), ("follow", [one]), ("fork", two), ("end", one), ("end", two)]
    assert list(calls) == [told, told]


@dataclass(frozen=True)
class Noting(Fixed):
    """Notes what it sees and is told, and ends no draft."""

    looks: ClassVar[bool] = True
    seen: ClassVar[list[Tensor]] = []
    told: ClassVar[list[tuple[int, int]]] = []

    def ends(self, sequences: Seq[Sequence], distribution: Tensor) -> Tensor:
        self.seen.append(distribution.clone())
        return torch.zeros(len(sequences), dtype=torch.bool)

    def observe(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self.told.append((drafted, accepted))


def test_a_rule_sees_the_row_that_it_is_asked_about(pair: Pair) -> None:
    """And not that of a draft beside it that has ended."""
    sequences = [Sequence.start(text, SamplingParams()) for text in ([5, 9, 2], [40, 3])]
    drafter = SmallLM(pair.draft, num_assistant_tokens_schedule=Noting(4))
    drafter.bind(ModelTarget(pair.target, 2, 64))
    for sequence in sequences:
        drafter.begin(sequence)
    Noting.seen.clear()
    drafter.draft(sequences, [1, 3], KeyedDraws([1, 2], [3, 2], torch.device("cpu")))
    expected = logits_after(pair.draft, [40, 3]).softmax(-1)
    torch.testing.assert_close(Noting.seen[0], expected[None])


def test_a_prompt_tells_a_rule_nothing(pair: Pair) -> None:
    """Steps do, also those without a draft."""
    drafter = SmallLM(pair.draft, num_assistant_tokens_schedule=Noting(4))
    drafter.bind(ModelTarget(pair.target, 1, 64))
    sequence, none = Sequence.start([5, 9, 2], SamplingParams()), torch.empty(1, 0)
    drafter.begin(sequence)
    Noting.told.clear()
    tree, scores = empty(1, torch.device("cpu")), Scores(none, none, none)
    drafter.observe([sequence], [Step([], [], 0, 0, tree, scores, read=2)])
    assert Noting.told == []
    sequence.tokens.append(4)
    drafter.observe([sequence], [Step([4], [], 0, 0, tree, scores)])
    assert Noting.told == [(0, 0)]
