"""Protocols: scores of both forms, and what drafters and rules get by default."""

from __future__ import annotations

import torch

from foretoken.draws import Draws, KeyedDraws
from foretoken.protocols import BaseDrafter, Drafter, Scores, Verdict, Verifier
from foretoken.sampling.fold import fold
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, empty

LOGITS = torch.tensor([[[0.0, 2.0, 1.0]]], dtype=torch.float64)


def scores(temperature: float) -> Scores:
    """Of one sequence's root."""
    sequence = Sequence.start([1], SamplingParams(temperature=temperature))
    folded = fold(LOGITS, [sequence], empty(1, LOGITS.device).contexts)
    return Scores(LOGITS, folded, folded.bad)


def test_greedy_scores_know_their_token() -> None:
    """The tokens with all the mass are there, and the distributions that they stand for."""
    greedy = scores(0.0)
    assert greedy.certain is not None and greedy.certain.tolist() == greedy.best.tolist() == [[1]]
    assert greedy.probs.tolist() == [[[0.0, 1.0, 0.0]]]


def test_sampled_scores_are_softmaxed() -> None:
    """No token has all the mass; the likeliest is the best all the same."""
    sampled = scores(0.5)
    assert sampled.certain is None and sampled.best.tolist() == [[1]]
    torch.testing.assert_close(sampled.probs, (LOGITS / 0.5).softmax(-1))


def test_scores_of_plain_probabilities() -> None:
    """A tensor of probabilities does instead of folded ones."""
    given = LOGITS.softmax(-1)
    plain = Scores(LOGITS, given, torch.zeros(1, 1, dtype=torch.bool))
    assert plain.probs is given and plain.certain is None and plain.best.tolist() == [[1]]


def test_a_drafter_must_only_draft() -> None:
    """Every other verb does nothing until it is written, and the object is a `Drafter`."""

    class Silent(BaseDrafter):
        def draft(self, sequences: object, budgets: object, draws: object) -> DraftTree:
            return empty(1, torch.device("cpu"))

    drafter, sequence = Silent(), Sequence.start([1], SamplingParams())
    assert isinstance(drafter, Drafter)
    drafter.begin(sequence)
    drafter.observe([sequence], [])
    drafter.fork(sequence, sequence)
    drafter.end([sequence])
    assert (drafter.parts, drafter.small_models, drafter.shared) == ((), (), None)
    assert not drafter.trees and drafter.wants.levels == "a"


def test_a_rule_needs_no_draws_of_its_own() -> None:
    """By default its random numbers are the keyed ones, and it reads no raw logits."""

    class First(Verifier):
        def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
            none = torch.zeros(1, dtype=torch.int64)
            return Verdict(none[:, None][:, :0], none, none)

    rule = First()
    assert rule.draws is KeyedDraws and not rule.reads_logits
