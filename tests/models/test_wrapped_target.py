"""A target around a target: it scores roots itself and leaves all else to the one it wraps."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch

from foretoken import SamplingParams
from foretoken.access import Pass, Wants
from foretoken.drafters.nothing import Nothing
from foretoken.errors import ForetokenError
from foretoken.models.hf.adapter import HFModel
from foretoken.models.target import ModelTarget
from foretoken.models.wrapped_target import WrappedTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, tiny_transformers
from foretoken.tree import DraftTree, chains, empty

CPU = torch.device("cpu")


class Noting(WrappedTarget):
    """Notes which passes are its own."""

    def __init__(self, target: ModelTarget) -> None:
        super().__init__(target)
        self.scored = 0

    def score_roots(self, sequences: Seq[Sequence], trees: DraftTree) -> Pass:
        self.scored += 1
        return self.target.score(sequences, trees)


class Reading(Nothing):
    """Reads states and drafts nothing."""

    wants = Wants("ad", (1,))


@torch.inference_mode()
def test_roots_are_its_own_and_drafts_are_not(pair: Pair) -> None:
    """What was computed ahead of a sequence is dropped where the wrapped target scores."""
    inner = ModelTarget(pair.target, 2, 32, 70)
    target = Noting(inner)
    assert target.nodes == 70
    sequence = Sequence.start([3, 1, 4], SamplingParams(temperature=0))
    assert target.free == inner.free == 2
    target.begin(sequence)
    assert inner.holds(sequence) and target.free == 1
    assert target.pending(sequence) == 2
    target.prefill([sequence], 8)
    target.score([sequence], empty(1, CPU))
    assert target.scored == 1
    sequence.state[target] = "ahead"
    out = target.score([sequence], chains([[5]], CPU))
    assert target.scored == 1 and target not in sequence.state
    expected = inner.score([sequence], chains([[5]], CPU))
    assert out.logits is not None and expected.logits is not None
    assert torch.equal(out.logits, expected.logits)
    target.commit([sequence], [[1]])
    sequence.tokens += [5, 6]
    assert target.pending(sequence) == 0
    target.end(sequence)
    assert not inner.holds(sequence)


@torch.inference_mode()
def test_states_that_a_drafter_reads_come_with_the_pass(pair: Pair) -> None:
    """Then the wrapped target makes every pass."""
    target = Noting(ModelTarget(pair.target, 1, 32))
    target.bind(Reading())
    sequence = Sequence.start([3, 1], SamplingParams(temperature=0))
    target.begin(sequence)
    target.prefill([sequence], 8)
    assert set(target.score([sequence], empty(1, CPU)).hidden) == {1} and not target.scored


def test_another_model_is_refused() -> None:
    """Single sub-layers are run by the native model alone."""
    with pytest.raises(ForetokenError, match="model_impl='native'"):
        Noting(ModelTarget(HFModel(tiny_transformers()), 1, 8))
