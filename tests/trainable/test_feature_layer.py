"""A layer unrolled over whole texts is the layer that drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken import SamplingParams
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable import masked_attention
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.feature_layer import FeatureModel
from foretoken.trainable.lesson import Lesson
from foretoken.tree import empty
from lessons import seeded


def lesson_of(pair: Pair, records: Records, layout: list[list[int]], length: int) -> Lesson:
    return FrozenTarget(pair.target).lesson(collate(records, layout, length, 0.25), (-1,))


def test_an_unrolled_step_is_a_drafted_one(small: Pair, records: Records) -> None:
    """Packed rows and one record by itself, a step at a time over all that stands before it."""
    module = seeded(EagleModule, small, heads=2, kv_heads=1)
    packed = lesson_of(small, records, [[0, 1, 2]], 70)
    with torch.no_grad():
        found = module.outputs(packed, 3)
    alone = lesson_of(small, records, [[1]], 22)
    start = int((packed.records[0] == 1).nonzero()[0])
    features, following = alone.hidden[-1], alone.embed(alone.tokens)
    for place in (0, 4, 11):
        known = features[:, : place + 1]
        for i in range(3):
            count = place + 1 + i

            def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k.expand_as(q), v.expand_as(q), is_causal=True
                )
                return out.transpose(1, 2).flatten(2)

            with torch.no_grad():
                out = module.predict(
                    known, following[:, 1 : count + 1], torch.arange(count)[None], [attend]
                )
            torch.testing.assert_close(found[0, start + place, i], out[0, -1])
            known = torch.cat((known, out[:, -1:]), 1)


def test_later_steps_are_made_where_tokens_count(small: Pair, records: Records) -> None:
    """The same as where all is made, and nothing elsewhere."""
    module = seeded(EagleModule, small)
    few = lesson_of(small, records, [[3]], 40)  # padded after its end
    few = replace(few, weight=few.weight * (few.weight == 1))  # answers alone
    every = replace(few, weight=torch.ones_like(few.weight))
    with torch.no_grad():
        whole, part = module.outputs(every, 3), module.outputs(few, 3)
    for i in range(3):
        counts = few.weight.roll(-2 - i, 1) > 0
        counts[:, -2 - i :] = False
        assert counts.any()
        torch.testing.assert_close(part[:, :, i][counts], whole[:, :, i][counts])
    left_out = (part[:, :, 1:] == 0).all(-1).all(-1)
    assert left_out.any() and not (part[:, :, 0] == 0).all(-1).any()


def test_scores_of_some_places_at_a_time(
    small: Pair, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same outputs and gradients, however many places are computed together."""
    module = seeded(EagleModule, small, heads=2, kv_heads=1)
    lesson = lesson_of(small, records, [[0, 1], [2, 3]], 45)
    found = []
    for numbers in (10**6, 45 * 4 * 7, 1):
        monkeypatch.setattr(masked_attention, "_NUMBERS", numbers)
        monkeypatch.setattr(masked_attention, "_QUERIES", 1)
        module.zero_grad()
        outputs = module.outputs(lesson, 3)
        outputs.square().sum().backward()
        grads = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        found.append((outputs.detach(), grads))
    (whole, grads), *others = found
    assert len(grads) > 5
    for outputs, same in others:
        torch.testing.assert_close(outputs, whole)
        torch.testing.assert_close(same, grads)


@torch.inference_mode()
def test_a_fork_of_a_text_that_started_again(small: Pair) -> None:
    """It begins as if the prompt alone had been read, though output was read with it."""
    module, prompt = seeded(EagleModule, small), [5, 9, 2, 7, 1]
    for chunk in (3, 16):
        waiting, entries = [], []
        for output in ([], [4, 4, 8]):
            target = ModelTarget(small.target, 2, 64, hidden=(-1,))
            model = FeatureModel(module, module.layer_shape, target)
            first, copy = (Sequence.start(prompt, SamplingParams()) for _ in range(2))
            first.tokens += output
            for each in (first, copy):
                target.begin(each)
                model.begin(each)
            while target.pending(first):
                before = target.pending(first)
                states = target.prefill([first], chunk).hidden
                read = before - target.pending(first)
                tree = empty(1, target.device)
                step = Step([], [], 0, 0, tree, scores_of(states), read=read)
                model.observe([first], [step])
            model.fork(first, copy)
            waiting.append(copy.state[model].waiting)
            entries.append(model._cache.lengths[model._cache.slot(copy.id)])
        torch.testing.assert_close(waiting[1], waiting[0])
        assert waiting[0].shape == (1, 32) and entries == [len(prompt) - 2] * 2


def scores_of(hidden: dict[int, torch.Tensor]) -> Scores:
    """Those of a prefill, which has states alone."""
    none = torch.empty(1, 0)
    return Scores(none, none, none, hidden)
