"""The target's first layers as a model that drafts: what it hands over to the scoring pass."""

from __future__ import annotations

import torch

from foretoken import SamplingParams
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.trainable.shallow import ShallowModel


class Plain:
    """An adapter that adds nothing: the exit layer's states, normed by the target itself."""

    decoder_layers = 1

    def __init__(self, target: ModelTarget) -> None:
        self.target = target

    def features(self, hidden: dict[int, torch.Tensor]) -> torch.Tensor:
        return hidden[1]

    def predict(
        self,
        features: torch.Tensor,
        following: torch.Tensor,
        positions: torch.Tensor,
        attends: list[Attend],
    ) -> torch.Tensor:
        return features

    def logits(self, outputs: torch.Tensor, head: object) -> torch.Tensor:
        return self.target.head(self.target.norm(outputs))


def shallow(pair: Pair, prompt: list[int]) -> tuple[ModelTarget, ShallowModel, Sequence]:
    """A sequence whose prompt both have read, but for the root."""
    target = ModelTarget(pair.target, 1, 64, hidden=(1, -1))
    width = LayerShape.for_width(target.width, 1, None, None)
    model = ShallowModel(target, 1, Plain(target), width)
    sequence = Sequence.start(prompt, SamplingParams(temperature=0))
    target.begin(sequence)
    model.begin(sequence)
    target.prefill([sequence], 64)
    return target, model, sequence


@torch.inference_mode()
def test_what_was_drafted_is_handed_over(pair: Pair) -> None:
    """The root and every token that was run, with their states after the exit layer, once."""
    target, model, sequence = shallow(pair, [5, 9, 2])
    assert model.resume_point() is None
    model.root_logits([sequence])
    model.next_logits([sequence], torch.tensor([7]))
    resume = model.resume_point()
    assert resume is not None and resume.layers == 1
    assert resume.tokens.tolist() == [[2, 7]] and resume.states.shape == (1, 2, target.width)
    assert model.resume_point() is None


def test_the_context_is_the_room(pair: Pair) -> None:
    """Never more drafts than positions that are left."""
    _, model, sequence = shallow(pair, [5, 9, 2])
    assert model.room(sequence) == 64 + 1 - 3
