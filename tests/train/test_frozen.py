"""Lessons hold what serving the same text computes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from foretoken.models.load import wrapped
from foretoken.models.native.build import build_native
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, tiny_transformers
from foretoken.train import frozen
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.trainable.small_lm import TrainedLM
from lessons import GREEDY, everywhere, packed, written
from stored_models import windowed


def test_lessons_hold_the_targets_cache(pair: Pair) -> None:
    """Keys and values of a packed record are those that serving it puts into the cache."""
    records = written(pair.target)
    lesson = FrozenTarget(pair.target).lesson(collate(records, [[0, 1]], 40, 0.0), (-1,))
    text = records.prompt(1) + records.answer(1)
    start = int((lesson.records[0] == 1).nonzero()[0])
    count = min(len(text), 40 - start)
    target = ModelTarget(pair.target, 1, 64)
    sequence = Sequence.start([*text[:count], 0], GREEDY)
    target.begin(sequence)
    target.prefill([sequence], 64)
    for layer in (0, 1):
        for mine, theirs in zip(lesson.kv(layer), target.kv(sequence, layer), strict=True):
            torch.testing.assert_close(mine[0, :, start : start + count], theirs)


@pytest.mark.parametrize("kind", ["native", "transformers", "windowed"])
def test_long_texts_are_read_in_parts(
    pair: Pair, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mask is for all pairs of a row's tokens; states, keys and values, and what is appended are
    those of one pass."""
    size = pair.target.vocab_size
    model: Any = windowed(size) if kind == "windowed" else pair.target
    if kind == "transformers":
        model = wrapped(tiny_transformers(size))
    rows, seen = packed(written(pair.target)), list[int]()
    embeddings = torch.randn(2, 3, model.width, dtype=model.dtype)
    positions = torch.tensor([[5, 6, 7], [2, 3, 4]])
    visible = torch.rand(2, 3, 83) < 0.5
    forward = type(model).forward

    def noting(this: Any, feed: Any, *given: Any) -> Any:
        seen.append(feed.ancestors.numel())
        return forward(this, feed, *given)

    def read() -> list[torch.Tensor]:
        lesson = FrozenTarget(model).lesson(rows, (0, 1, -1))
        assert len(lesson.hidden) == 3 and lesson.hidden[1].shape == (2, 80, model.width)
        seen.append(0)  # what is appended may see all of the text
        kept = [*lesson.hidden.values(), *(x.clone() for x in lesson.kv(1))]
        return [*kept, lesson.append(embeddings, positions, visible)]

    monkeypatch.setattr(type(model), "forward", noting)
    whole = read()
    assert seen[0] == 2 * 80 * 80
    seen.clear()
    monkeypatch.setattr(frozen, "_PAIRS", 2 * 80 * 7, raising=False)
    parts = read()
    assert len(seen[: seen.index(0)]) == 12 and max(seen[: seen.index(0)]) <= 2 * 80 * 7
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_text_is_read_once_and_only_where_it_is_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model that learns tokens alone takes no pass of the target, nor does its estimate at
    temperature 0; states, keys and values, in whichever order, take one."""
    rows, target = packed(written(pair.target)), FrozenTarget(pair.target)
    passes, forward = [], type(pair.target).forward

    def noting(this: Any, feed: Any, *given: Any) -> Any:
        passes.append(feed)
        return forward(this, feed, *given)

    monkeypatch.setattr(type(pair.target), "forward", noting)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    module = TrainedLM(Facts.of(pair.target), **shape, num_attention_heads=2)
    lesson = target.lesson(rows, module.hidden)
    module(lesson, Objective({"nll": 1.0})).backward()
    module.token_acceptance(lesson, everywhere(lesson))
    assert not passes and list(lesson.hidden) == [-1]
    for _ in range(2):
        module(lesson, Objective({"kl_div": 1.0})).backward()
    lesson.kv(0)
    assert len(passes) == 1
    for layers in ((), (-1,)):
        passes.clear()
        lesson = target.lesson(rows, layers)
        for _ in range(2):
            lesson.kv(1)
            assert [len(states) for states in lesson.hidden.values()] == [2] * len(layers)
        assert len(passes) == 1
    other = target.lesson(rows, (-1,))
    assert [x.kv(0)[0].shape for x in (other, lesson)] == [lesson.kv(0)[0].shape] * 2
    assert len(passes) == 3  # there is one cache, which has the keys of one text


def test_batches_of_other_sizes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of more rows, one of longer ones, and one whose single tokens are many at once."""
    records, target = written(pair.target), FrozenTarget(pair.target)
    for layout, length in (([[0]], 12), ([[1], [0]], 12), ([[1], [0]], 16)):
        rows = collate(records, layout, length, 0.0)
        found = target.lesson(rows, (-1,)).hidden[-1]
        assert torch.equal(found, FrozenTarget(pair.target).lesson(rows, (-1,)).hidden[-1])
    monkeypatch.setattr(frozen, "_PAIRS", 1)
    apart = target.lesson(rows, (-1,)).hidden[-1]
    torch.testing.assert_close(apart, found, rtol=1e-4, atol=1e-5)


def test_a_text_is_read_again_where_another_has_its_place(pair: Pair) -> None:
    """There are keys and values of the last batch alone."""
    records, target = written(pair.target), FrozenTarget(pair.target)
    lesson = target.lesson(collate(records, [[0]], 12, 0.0), (-1,))
    before = [x.clone() for x in lesson.kv(1)]
    other = target.lesson(collate(records, [[1]], 12, 0.0), (-1,)).hidden[-1]
    assert other.shape == lesson.hidden[-1].shape
    assert all(torch.equal(a, b) for a, b in zip(lesson.kv(1), before, strict=True))


def test_weights_that_are_changed(pair: Pair) -> None:
    rows = collate(written(pair.target), [[0]], 12, 0.0)
    lesson = FrozenTarget(pair.target, weigh=lambda given: 0.5 * given.weight).lesson(rows, (-1,))
    assert rows.weight.any() and torch.equal(lesson.weight, 0.5 * rows.weight)


def test_a_target_in_half_precision_keeps_its_own(pair: Pair) -> None:
    """States and distributions of a float16 target are not rounded to the bfloat16 of a drafter's
    products; gradients are, since float16 has no place for the smallest."""
    lm = tiny_transformers(pair.target.vocab_size, dtype=torch.float32)
    weights = lm.state_dict().__getitem__
    half = build_native(lm.config, weights, torch.float16, torch.device("cpu"), "plain")
    frozen_target, rows = FrozenTarget(half), packed(written(pair.target))
    apart = frozen_target.lesson(rows, (-1,))
    with torch.autocast("cpu", torch.bfloat16):
        lesson = frozen_target.lesson(rows, (-1,))
        states = lesson.hidden[-1]
        logits = lesson.head(states)
        learner = states.clone().requires_grad_()
        learned = lesson.head(learner)
    assert torch.equal(states, apart.hidden[-1])
    assert logits.dtype == torch.float16 and torch.equal(logits, apart.head(states))
    assert learned.dtype == torch.bfloat16
    del states, logits, learner.grad
    kept = [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.ndim == 3]
    alike = [x for x in kept if x.shape == lesson.hidden[-1].shape]
    assert {x.dtype for x in alike} == {torch.float32}  # the target's own are let go
    (1e-9 * learned.float().square().sum()).backward()
    assert learner.grad is not None and (learner.grad != 0).float().mean() > 0.9


def test_a_draft_has_no_more_nodes_than_serving_has_room_for(pair: Pair) -> None:
    rows = collate(written(pair.target), [[0, 1]], 40, 0.0)
    found = FrozenTarget(pair.target, nodes=3).lesson(rows, (-1,)).max_nodes
    assert found.max() == 3 and torch.equal(found, rows.max_nodes.clamp(max=3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_is_read_of_a_target_is_in_the_drafters_dtype(pair: Pair, dtype: torch.dtype) -> None:
    """Whatever the target's is. What is appended has its precision, and not that of a drafter's
    products; without those the head has it for states that learn, too."""
    lm = tiny_transformers(pair.target.vocab_size, dtype=torch.float32)
    target = build_native(
        lm.config, lm.state_dict().__getitem__, dtype, torch.device("cpu"), "plain"
    )
    lesson = FrozenTarget(target).lesson(packed(written(pair.target)), (-1,))
    embeddings, positions = lesson.embed(lesson.tokens[:, :2]), torch.tensor([[30, 31]] * 2)
    visible = torch.ones(2, 2, 82, dtype=torch.bool)
    appended = lesson.append(embeddings, positions, visible)
    read = (lesson.hidden[-1], *lesson.kv(0), embeddings, appended)
    assert [x.dtype for x in read] == [torch.float32] * 5
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lesson.append(embeddings, positions, visible), appended)
    assert lesson.head(lesson.hidden[-1].clone().requires_grad_()).dtype == dtype


def test_keys_and_values_are_of_the_batch_alone(pair: Pair) -> None:
    """Though the cache has room for the rows and places of one before."""
    records, target = written(pair.target), FrozenTarget(pair.target)
    assert target.lesson(collate(records, [[1], [0]], 16, 0.0), (-1,)).hidden[-1].shape[0] == 2
    rows = collate(records, [[0]], 12, 0.0)
    found, alone = (each.lesson(rows, (-1,)).kv(1) for each in (target, FrozenTarget(pair.target)))
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


def test_the_temperature_is_that_of_the_texts(pair: Pair) -> None:
    rows = collate(written(pair.target), [[0]], 12, 0.0)
    assert FrozenTarget(pair.target, temperature=0.7).lesson(rows, (-1,)).temperature == 0.7
