"""DFlash's module: what a block attends to, its loss, its checkpoint's names."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.dflash import DFlash
from foretoken.drafters.dflash_tree import DFlashTree
from foretoken.drafters.nothing import Nothing
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.block_layers import BlockModule, default_layers
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, PROMPTS
from modules import block_module, learned_block_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> BlockModule:
    """Trained for a few steps, on the very texts."""
    return learned_block_module(small, records)


def lesson_of(pair: Pair, module: Any, records: Records, layout: list[list[int]]) -> Lesson:
    return FrozenTarget(pair.target).lesson(collate(records, layout, 60, 0.25), module.hidden)


def test_a_block_sees_its_own_text_and_itself(
    small: Pair, records: Records, learned: BlockModule
) -> None:
    """A packed row's blocks are those of each record by itself; a block's masks see each other."""
    packed = lesson_of(small, learned, records, [[0, 1, 2]])
    alone = lesson_of(small, learned, records, [[1]])
    start = int((packed.records[0] == 1).nonzero()[0])
    some = torch.tensor([[1, 7, 19]])
    both = learned.outputs(packed, some + start), learned.outputs(alone, some)
    torch.testing.assert_close(both[0], both[1])
    with torch.no_grad():
        other = block_module(small, block_size=4)
        other.load_state_dict(learned.state_dict())
    assert not torch.allclose(other.outputs(alone, some), both[1][:, :, :3])


def test_the_loss_by_hand(small: Pair, records: Records) -> None:
    """With more blocks than roots each root has one: the mean over all its places, weighted."""
    module = block_module(small, anchors=1000)
    lesson = lesson_of(small, module, records, [[0, 1, 2], [6, 3, 4]])
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    total = weight = 0.0
    for b, t in itertools.product(range(2), range(59)):
        after = int(lesson.positions[b, t + 1]) == int(lesson.positions[b, t]) + 1
        if not after or not lesson.positions[b, t] or not lesson.weight[b, t + 1]:
            continue
        states = module.outputs(lesson, torch.full((2, 1), t))[b, 0]
        for i in range(4):
            n = t + 1 + i
            if n < 60 and lesson.records[b, n] == lesson.records[b, t]:
                share = float(lesson.weight[b, n]) * 0.5**i
                goal = small.target.head(lesson.hidden[-1][b, n - 1])
                mine = small.target.head(states[i])
                weight += share
                total += share * float(DIVERGENCES["kl_div"](mine, goal).detach())
    assert loss.item() == pytest.approx(total / weight, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_no_block_stands_where_no_answer_follows(small: Pair) -> None:
    """Also in a row that has fewer places for them than another."""
    pairs = [([5] * 2, [7] * 14), ([5] * 10, [7] * 6)]
    module, texts = block_module(small, anchors=1000), Records.of(pairs, 20, 23)
    rows = collate(texts, [[0], [1]], 16, 0.0)
    lesson = FrozenTarget(small.target).lesson(rows, module.hidden)
    _, row, token, ahead = module.predictions(lesson)
    assert set(row.tolist()) == {0, 1}
    assert (lesson.weight[row, token - ahead] > 0).all()


def test_blocks_are_drawn(small: Pair, records: Records) -> None:
    """So many a row, others each time, and none where no answer is."""
    module = block_module(small, anchors=2)
    lesson = lesson_of(small, module, records, [[0, 1, 2], [3, 4, 5]])
    seen: list[torch.Tensor] = []
    whole_ = BlockModule.outputs
    module.outputs = lambda lesson, roots: seen.append(roots) or whole_(module, lesson, roots)  # type: ignore[method-assign, func-returns-value]
    for _ in range(5):
        module(lesson, Objective({"ce": 1.0}))
    assert all(roots.shape == (2, 2) for roots in seen)
    assert len({tuple(roots.flatten().tolist()) for roots in seen}) > 1


def test_checkpoint_names_and_targets(small: Pair) -> None:
    """The names of z-lab and speculators; which layers are read; another target is refused."""
    module = block_module(small, num_layers=1, mask_token_id=22, target_layer_ids=(1, 0, 1))
    names = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    names |= {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"}
    names |= {f"layers.0.self_attn.{x}_norm.weight" for x in "qk"}
    names |= {f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    names |= {f"layers.0.{x}_layernorm.weight" for x in ("input", "post_attention")}
    assert set(module.state_dict()) == names
    assert set(block_module(small, num_layers=1).state_dict()) == names | {"mask_embedding"}
    assert module.hidden == (2, 1, -1)
    for drafter in (DFlash(module), DFlashTree(module)):
        drafter.bind(ModelTarget(small.target, 1, 32))
        assert drafter.wants.hidden == (2, 1)
    assert (
        default_layers(36) == [1, 9, 17, 25, 33]
        and default_layers(7) == [0, 2, 5]
        and default_layers(1) == [0]
    )
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        DFlash(module).bind(ModelTarget(tiny_pair(23, width=16).target, 1, 32))
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        DFlash()
    for shape in ({"block_size": 1}, {"target_layer_ids": [2]}):
        with pytest.raises(ForetokenError, match=r"at least 2 tokens.*are 0 to 1"):
            BlockModule.from_shape(module.facts, shape, "it")
    outputs = serve(small.target, DFlash(module), Speculative(), PROMPTS, GREEDY)
    plain = serve(small.target, Nothing(), TargetOnly(), PROMPTS, GREEDY)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
