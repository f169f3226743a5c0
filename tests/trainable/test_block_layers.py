"""DFlash's module: what a block attends to, its loss, its checkpoint's names."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.dflash import DFlash
from foretoken.drafters.dflash_tree import DFlashTree
from foretoken.drafters.nothing import Nothing
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable import block_layers
from foretoken.trainable.block_layers import BlockModule, default_layers
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.tree import empty
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


@pytest.mark.parametrize("window", [None, 4])
def test_what_a_block_sees_of_its_text(window: int | None) -> None:
    """What is before its root, as far as the window of each place reaches, and not the root
    itself, which the block has."""
    records = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1, -1]])
    roots = torch.tensor([[2, 4, 8]])
    found = block_layers._block_mask(records, roots, 3, window, slice(1, 3))
    for (block, root), ahead in itertools.product(enumerate((4, 8)), range(3)):
        first = root + ahead + 1 - (window or 99)
        seen = [at for at in range(root) if at >= first and records[0, at] == records[0, root]]
        assert found[0, block, ahead].nonzero()[:, 0].tolist() == seen


@pytest.mark.parametrize("causal", [False, True])
def test_the_attention_of_blocks_by_hand(causal: bool) -> None:
    """Of each place and head to what it sees of the text and to its block, at once."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 3, heads, 4, dtype=torch.float64) for heads in (4, 2, 2))
    keys, values = torch.randn(2, 2, 5, 2, 4, dtype=torch.float64)
    before = torch.rand(2, 2, 3, 5) < 0.5
    found = block_layers._attend_blocks(causal, before, q, k, v, keys, values)
    for b, block, at, head in itertools.product(range(2), range(2), range(3), range(4)):
        end, kind, text = at + 1 if causal else 3, head // 2, before[b, block, at]
        seen = torch.cat((keys[b, text, kind], k[b, block, :end, kind]))
        mixed = torch.cat((values[b, text, kind], v[b, block, :end, kind]))
        expected = (seen @ q[b, block, at, head] / 2).softmax(0) @ mixed
        torch.testing.assert_close(found[b, 3 * block + at].view(4, 4)[head], expected)


def test_what_a_block_is_made_of(small: Pair) -> None:
    """Its root's embedding and masks; states of the target's layers, as often and in the order that
    they are named."""
    module = block_module(small, target_layer_ids=(1, 0, 1))
    named = block_module(small, mask_token_id=7)
    width = small.target.width
    table, roots = torch.randn(23, width, dtype=torch.float64), torch.tensor([[4, 9]])
    for each, mask in ((module, module.mask_embedding), (named, table[7])):
        made = each.block_inputs(roots, table.__getitem__).view(2, 5, width)
        assert torch.equal(made[:, 0], table[roots[0]])
        assert torch.equal(made[:, 1:], mask.expand(2, 4, width))
    one, two = torch.randn(2, 3, width, dtype=torch.float64)
    both = module.hidden_norm(module.fc(torch.cat((two, one, two), -1)))
    assert torch.equal(module.features({1: one, 2: two}), both)


def test_states_of_many_roots(
    small: Pair, records: Records, learned: BlockModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time, as those of a row at once."""
    lesson = lesson_of(small, learned, records, [[0, 1], [3]])
    whole = learned.states(lesson)
    assert not whole[lesson.max_nodes.roll(-1, 1) < 0].any()
    monkeypatch.setattr(block_layers, "_ROOTS", 9)
    torch.testing.assert_close(learned.states(lesson), whole)


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


def test_each_text_has_a_row_of_its_own(small: Pair) -> None:
    """A drafter may be asked for some texts of a pass, in another order: what it keeps of each are
    keys of the states after its own tokens. A copy begins with the prompt's, and nothing is drafted
    before any are there."""
    module = block_module(small)
    model, none = module.serving(ModelTarget(small.target, 3, 32)), torch.empty(1, 0)
    texts = [Sequence.start([1, 2, 3, 4], SamplingParams()) for _ in range(3)]
    for text in texts:
        model.begin(text)
    slots = [model._cache.slot(text.id) for text in texts]

    def follow(read: int, path: list[int], kept: list[int], start: int) -> None:
        width = small.target.width
        hidden = {layer: torch.randn(2, 4, width).double() for layer in module.reads}
        scores = Scores(none, none, none, hidden)
        steps = [Step([], path, 3, row, empty(1, none.device), scores, read=read) for row in (1, 0)]
        model.follow(texts[:2], steps)
        for slot, row in ((slots[0], 1), (slots[1], 0)):
            mine = {layer: states[row, kept][None] for layer, states in hidden.items()}
            positions = torch.arange(start, start + len(kept))[None]
            keys, _ = module.context(module.features(mine), positions)[1]
            there = model._cache.layer[1].keys[slot, :, start : start + len(kept)]
            torch.testing.assert_close(there, keys[0].transpose(0, 1))

    assert model.room(texts[0]) == 0
    follow(3, [], [0, 1, 2], 0)
    for text in texts[:2]:
        text.tokens += [5, 6, 7]
    follow(0, [2, 3], [0, 2, 3], 3)
    assert model.room(texts[0]) == 4
    model.fork(texts[0], texts[2])
    assert [model._cache.lengths[slot] for slot in slots] == [6, 6, 3]


def test_windows_that_a_block_does_not_fit_in(small: Pair) -> None:
    """Of any layer."""
    assert block_module(small, window=[None, 5]).sees == [(None, False), (5, False)]
    with pytest.raises(ForetokenError, match="window is 4, and a block of 5 must fit in"):
        BlockModule.from_shape(
            Facts.of(small.target), {"num_layers": 2, "block_size": 5, "window": [None, 4]}, "it"
        )


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
