"""GliDe and CaPE: what a draft sees of the target's cache; estimates that are what is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.glide import Glide
from foretoken.drafters.glide_cape import GlideCape
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import Frozen
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.cross_attention import GlimpseModule
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, PROMPTS, check_estimate, taught, written


@pytest.fixture(scope="module")
def small() -> Pair:
    return tiny_pair(23)


@pytest.fixture(scope="module")
def records(small: Pair) -> Records:
    """What the target writes greedily."""
    return written(small.target)


def made(pair: Pair, **shape: Any) -> GlimpseModule:
    torch.manual_seed(3)
    return GlimpseModule(Facts.of(pair.target), heads=2, kv_heads=1, **shape).double().eval()


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> GlimpseModule:
    """Trained for a few steps, on the very texts."""
    rows = collate(records, [[0, 1, 2], [3, 4, 5]], 70, 0.25)
    goal = Objective({"kl_div": 1.0})
    found: GlimpseModule = taught(
        made(small), small.target, lambda step: rows, goal, lr=3e-3, left=0.5
    )
    return found


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        (Glide, Speculative()),
        (GlideCape, TargetOnly()),
        (lambda m: GlideCape(m, 3, cape=((0.5, 3), (1.0, 1))), TargetOnly()),
    ],
)
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: GlimpseModule, drafter: Any, rule: Any
) -> None:
    """Steps and accepted places, budgets included."""
    total = check_estimate(drafter(learned), learned, small.target, records, rule)
    assert total.accepted[1] > 0


def test_lessons_hold_the_targets_cache(small: Pair, records: Records) -> None:
    """Keys and values of a packed record are those that serving it puts into the cache."""
    lesson = Frozen(small.target).lesson(collate(records, [[0, 1]], 40, 0.0), (-1,))
    text = records.prompt(1) + records.answer(1)
    start = int((lesson.records[0] == 1).nonzero()[0])
    count = min(len(text), 40 - start)
    target = ModelTarget(small.target, 1, 64)
    sequence = Sequence.start([*text[:count], 0], GREEDY)
    target.begin(sequence)
    target.prefill([sequence], 64)
    for layer in (0, 1):
        for mine, theirs in zip(lesson.kv(layer), target.kv(sequence, layer), strict=True):
            torch.testing.assert_close(mine[0, :, start : start + count], theirs)


def test_a_draft_sees_what_lies_before_its_root(
    small: Pair, records: Records, learned: GlimpseModule
) -> None:
    """Its outputs follow from the cache before the root and from nothing of it after."""
    lesson = Frozen(small.target).lesson(collate(records, [[0], [3]], 20, 0.0), (-1,))
    keys, values = (x.clone() for x in lesson.kv(learned.read_layer))
    root, ahead = 9, 2
    counts = torch.full_like(lesson.tokens, ahead)
    before = learned.outputs(lesson, counts)

    def changed(place: int) -> torch.Tensor:
        mine = [x.clone() for x in (keys, values)]
        for x in mine:
            x[:, :, place] += 1
        object.__setattr__(lesson, "kv", lambda layer: tuple(mine))
        return learned.outputs(lesson, counts)[:, root + ahead]

    assert torch.equal(changed(root), before[:, root + ahead])
    assert not torch.allclose(changed(root - 1), before[:, root + ahead])


def test_the_loss_by_hand(small: Pair, records: Records) -> None:
    """Every token whose block's root has something before it; a gradient for every weight."""
    module, frozen = made(small, block_size=3), Frozen(small.target)
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 40, 0.25), (-1,))
    torch.manual_seed(5)
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    torch.manual_seed(5)
    first = torch.randint(3, (2, 1))
    total = weight = 0.0
    for b in range(2):
        for t in range(39):
            ahead = (t - int(first[b])) % 3
            root = int(lesson.positions[b, t]) - ahead
            if root < 1 or int(lesson.positions[b, t + 1]) != int(lesson.positions[b, t]) + 1:
                continue
            mine = module.outputs(lesson, torch.full_like(lesson.tokens, ahead))[b, t]
            share = float(lesson.weight[b, t + 1]) * 0.5**ahead
            said, goal = (small.target.head(x) for x in (mine, lesson.hidden[-1][b, t]))
            weight += share
            total += share * float(DIVERGENCES["kl_div"](said, goal).detach())
    assert loss.item() == pytest.approx(total / weight, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_cape_widens_where_the_drafter_is_unsure(small: Pair, learned: GlimpseModule) -> None:
    """The paper's table, each place's candidates, and tables that make no sense."""
    chances = torch.tensor([[0.1, 0.3, 0.59], [0.6, 0.8, 1.0]])
    assert GlideCape(learned)._candidates(chances).tolist() == [[8, 6, 6], [4, 2, 2]]
    for cape in ((), ((0.5, 2),), ((1.0, 0),), ((0.8, 2), (0.3, 4), (1.0, 1))):
        with pytest.raises(ForetokenError, match="cape is"):
            GlideCape(learned, cape=cape)
    params = SamplingParams(temperature=0, max_tokens=80)  # few nodes may be left near the end
    narrow = GlideCape(learned, cape=((1.0, 1),))
    chain = serve(small.target, Glide(learned), Speculative(), PROMPTS, params)
    outputs = serve(small.target, narrow, TargetOnly(), PROMPTS, params)
    assert [o.stats.accepted_at for o in outputs] == [o.stats.accepted_at for o in chain]
    wide = serve(small.target, GlideCape(learned), TargetOnly(), PROMPTS, params)
    assert sum(o.stats.passes for o in wide) < sum(o.stats.passes for o in chain)


def test_targets(small: Pair) -> None:
    """Heads of another width are refused; a checkpoint that doesn't know them is not asked."""
    module = made(small)
    assert (module.facts.kv_heads, module.facts.head_dim) == (2, 8)
    known = Facts(32, 23, 2, 2, 16)
    with pytest.raises(ForetokenError, match=r"head_dim 16 and this target has 8"):
        known.check(module.facts, "It")
    Facts(32, 23, 2).check(module.facts, "It")
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        Glide()
    with pytest.raises(ForetokenError, match="below the target's 2 layers"):
        GlimpseModule.from_shape(module.facts, {"read_layer": 2}, "it")
