"""EAGLE's module: its loss and its checkpoint's names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretoken import ForetokenError
from foretoken.drafters.eagle import Eagle
from foretoken.drafters.eagle2 import Eagle2
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.feature_module import FeatureModule
from foretoken.trainable.layer import heads_for
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import FEATURE, Objective
from lessons import seeded


def lesson_of(pair: Pair, records: Records, layout: list[list[int]], length: int) -> Lesson:
    return FrozenTarget(pair.target).lesson(collate(records, layout, length, 0.25), (-1,))


@pytest.mark.parametrize("unroll", [1, 3])
def test_the_loss_counts_states_of_the_same_text(
    small: Pair, records: Records, unroll: int
) -> None:
    """Smooth L1 by hand, of every step that is taken, and a gradient for every weight."""
    module = seeded(EagleModule, small, unroll=unroll)
    lesson = lesson_of(small, records, [[0, 1], [2, 3]], 40)
    both = module(lesson, Objective({FEATURE: 2.0, "kl_div": 1.0}, 0.5))
    plain = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    total = weight = 0.0
    outputs = module.outputs(lesson, unroll)
    for b in range(2):
        for n in range(40):
            share = float(lesson.weight[b, n])
            weight += share
            for i in range(unroll):
                if share and int(lesson.positions[b, n]) >= 2 + i:
                    goal, mine = lesson.hidden[-1][b, n - 1], outputs[b, n - 2 - i, i]
                    each = torch.nn.functional.smooth_l1_loss(mine, goal)
                    total += 0.5**i * share * float(each.detach())
    assert float((both - plain).detach()) == pytest.approx(2 * total / weight, rel=1e-5)
    both.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())
    with pytest.raises(ForetokenError, match="losses of logits"):
        module(lesson, Objective({FEATURE: 1.0}))


def test_checkpoint_names_and_targets(small: Pair) -> None:
    """SafeAILab's names; another target is refused."""
    module = seeded(EagleModule, small)
    names = {"fc.weight", "fc.bias", "layers.0.post_attention_layernorm.weight"}
    names |= {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"}
    names |= {f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    assert set(module.state_dict()) == names
    other = ModelTarget(tiny_pair(23, width=16).target, 1, 32)
    for cls in (Eagle, Eagle2):
        with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
            cls(module).bind(other)
    assert [heads_for(width) for width in (8, 32, 288, 4096)] == [1, 1, 6, 64]


def test_noise_is_by_length(small: Pair, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform, at most a tenth on a text of 512 tokens, and the more the shorter a text is, however
    long the row is."""
    module = seeded(EagleModule, small).train()
    lesson = lesson_of(small, records, [[0, 1, 2], [3, 4, 5]], 150)
    assert (lesson.records < 0).any()
    seen: list[Tensor] = []
    monkeypatch.setattr(
        FeatureModule, "outputs", lambda _, given, __: seen.append(given.hidden[-1])
    )
    for _ in range(20):
        module.outputs(lesson, 1)
    noise = torch.stack(seen) - lesson.hidden[-1]
    for row in range(2):
        for record in range(3):
            mine = lesson.records[row] == record
            most = 51.2 / int(mine.sum())
            largest, mean = noise[:, row, mine].abs().max(), noise[:, row, mine].mean()
            assert 0.99 * most < float(largest) <= most and abs(float(mean)) < 0.1 * most


def test_noise_on_the_states_in_training(small: Pair, records: Records) -> None:
    """From the process's numbers; none outside of training."""
    module = seeded(EagleModule, small)
    lesson = lesson_of(small, records, [[0, 1], [2, 3]], 40)

    def outputs(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return module.outputs(lesson, 1)

    with torch.random.fork_rng([]), torch.no_grad():
        calm = outputs(1)
        assert torch.equal(calm, outputs(2))
        module.train()
        noisy = outputs(1)
        assert torch.equal(noisy, outputs(1)) and not torch.equal(noisy, outputs(2))
        assert not torch.equal(noisy, calm)
