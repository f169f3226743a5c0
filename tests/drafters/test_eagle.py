"""The EAGLE family: what is trained is what is drafted with, and estimates are what is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.eagle import TREE, Eagle
from foretoken.drafters.eagle2 import Eagle2
from foretoken.drafters.eagle3 import Eagle3, Eagle3Module, default_capture
from foretoken.drafters.shared.feature_trees import in_beam
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import Frozen
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.layer import heads_for
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import DIVERGENCES, FEATURE, Objective
from foretoken.trees.grow import Frontier, beam
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, PROMPTS, check_estimate, written


@pytest.fixture(scope="module")
def small() -> Pair:
    return tiny_pair(23)


@pytest.fixture(scope="module")
def records(small: Pair) -> Records:
    """What the target writes greedily."""
    return written(small.target)


def made(cls: Any, pair: Pair, **shape: Any) -> Any:
    """A module with weights from a seed, not in training."""
    torch.manual_seed(3)
    return cls(Facts.of(pair.target), **shape).double().eval()


def lesson_of(pair: Pair, records: Records, layout: list[list[int]], length: int) -> Lesson:
    return Frozen(pair.target).lesson(collate(records, layout, length, 0.25), (-1,))


@pytest.mark.parametrize("tree", [TREE, ((0,), (0, 0), (0, 0, 0)), ((0,), (1,), (1, 0))])
def test_the_estimate_is_what_is_served(small: Pair, records: Records, tree: Any) -> None:
    """Each step's acceptance, the drafter's own states along the text included."""
    module = made(EagleModule, small)
    check_estimate(Eagle(module, tree=tree), module, small.target, records, MultiCandidate())


def test_an_unrolled_step_is_a_drafted_one(small: Pair, records: Records) -> None:
    """Packed rows and one record by itself, a step at a time over all that stands before it."""
    module = made(EagleModule, small, heads=2, kv_heads=1)
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
                    known, following[:, 1 : count + 1], torch.arange(count)[None], attend
                )
            torch.testing.assert_close(found[0, start + place, i], out[0, -1])
            known = torch.cat((known, out[:, -1:]), 1)


def test_later_steps_are_made_where_tokens_count(small: Pair, records: Records) -> None:
    """The same as where all is made, and nothing elsewhere."""
    module = made(EagleModule, small)
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


def test_the_loss_counts_states_of_the_same_text(small: Pair, records: Records) -> None:
    """Smooth L1 by hand, and a gradient for every weight."""
    module = made(EagleModule, small)
    lesson = lesson_of(small, records, [[0, 1], [2, 3]], 40)
    both = module(lesson, Objective({FEATURE: 2.0, "kl_div": 1.0}))
    plain = module(lesson, Objective({"kl_div": 1.0}))
    total = weight = 0.0
    outputs = module.outputs(lesson, 1)[:, :, 0]
    for b in range(2):
        for n in range(40):
            share = float(lesson.weight[b, n])
            weight += share
            if share and int(lesson.positions[b, n]) >= 2:
                goal, mine = lesson.hidden[-1][b, n - 1], outputs[b, n - 2]
                total += share * float(torch.nn.functional.smooth_l1_loss(mine, goal).detach())
    assert float((both - plain).detach()) == pytest.approx(2 * total / weight, rel=1e-5)
    both.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())
    with pytest.raises(ForetokenError, match="losses of logits"):
        module(lesson, Objective({FEATURE: 1.0}))


def test_checkpoint_names_and_targets(small: Pair) -> None:
    """SafeAILab's names; another target is refused."""
    module = made(EagleModule, small)
    names = {"fc.weight", "fc.bias", "layers.0.post_attention_layernorm.weight"}
    names |= {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"}
    names |= {f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    assert set(module.state_dict()) == names
    other = ModelTarget(tiny_pair(23, width=16).target, 1, 32)
    for cls in (Eagle, Eagle2):
        with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
            cls(module).bind(other)
    assert [heads_for(width) for width in (8, 32, 288, 4096)] == [1, 1, 6, 64]


def test_the_dynamic_tree_takes_the_likeliest(small: Pair) -> None:
    """Budgets bound the tree, and more nodes never accept less at temperature 0."""
    module = made(EagleModule, small)
    steps = []
    for nodes in (2, 8, 40):
        drafter = Eagle2(module, tree_nodes=nodes)
        outputs = serve(small.target, drafter, TargetOnly(), PROMPTS, GREEDY)
        assert all(o.stats.drafted <= nodes * o.stats.passes for o in outputs)
        steps.append(sum(o.stats.passes for o in outputs))
    assert steps[0] >= steps[-1]


def test_a_text_is_where_the_beam_finds_it() -> None:
    """Where distributions depend on the level alone, a path is said to be in the tree just if it
    is."""
    random = torch.Generator().manual_seed(5)
    distributions = (2 * torch.randn(40, 3, 7, generator=random)).softmax(-1)
    goal = torch.multinomial(distributions.flatten(0, 1), 1, generator=random).view(40, 3)
    nodes = torch.randint(0, 12, (40,), generator=random)
    found = in_beam(distributions, goal, 3, nodes)

    def ask(frontier: Frontier) -> torch.Tensor:
        return distributions[:, frontier.depth, None].expand(-1, frontier.slots.shape[1], -1)

    tree = beam(ask, 3, 3, nodes.tolist(), torch.device("cpu"))
    for b in range(40):
        paths: list[tuple[int, ...]] = [()]
        for node in range(int(tree.counts[b])):
            paths.append((*paths[int(tree.parent_slots[b, node])], int(tree.tokens[b, node])))
        wanted = [tuple(goal[b, : n + 1].tolist()) in paths for n in range(3)]
        assert found[b].tolist() == wanted
    assert found[:, 0].any() and found[:, 2].any() and not found.all()


@pytest.mark.parametrize(
    ("drafter_cls", "module_cls"), [(Eagle2, EagleModule), (Eagle3, Eagle3Module)]
)
def test_the_estimate_of_a_chain(
    small: Pair, records: Records, drafter_cls: Any, module_cls: Any
) -> None:
    """With one path a level the tree is a chain, and the estimate is what is served."""
    module = made(module_cls, small)
    if module_cls is Eagle3Module:
        module.set_token_counts(records.counts(23))
        module.copy_from(Frozen(small.target))
    drafter = drafter_cls(module, depth=3, top_k=1, tree_nodes=1000)
    check_estimate(drafter, module, small.target, records, TargetOnly())


def test_eagle3_keeps_to_its_vocabulary(small: Pair, records: Records) -> None:
    """Its head's tokens are the text's likeliest; it drafts no others, and learns of no others."""
    module, frozen = made(Eagle3Module, small, draft_vocab_size=6, unroll=2), Frozen(small.target)
    counts = records.counts(23)
    module.set_token_counts(counts)
    module.copy_from(frozen)
    known = set(module.ids.tolist())
    assert known == set(counts.sort(descending=True, stable=True).indices[:6].tolist())
    assert module.t2d.nonzero()[:, 0].tolist() == sorted(known)
    layers = tuple(dict.fromkeys((*default_capture(small.target.layers), -1)))
    assert module.hidden == layers
    said = module.logits(torch.randn(2, 3, 32).double(), frozen.head)
    assert set(said[0, 0].isfinite().nonzero()[:, 0].tolist()) == known
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 40, 0.0), module.hidden)
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    outputs = module.outputs(lesson, 2)
    total = weight = 0.0
    for b in range(2):
        for n in range(40):
            share, token = float(lesson.weight[b, n]), int(lesson.tokens[b, n])
            weight += share
            for i in range(2):
                if share and token in known and int(lesson.positions[b, n]) >= 2 + i:
                    mine = module.reduced_logits(outputs[b, n - 2 - i, i])
                    goal = frozen.head(lesson.hidden[-1][b, n - 1])[module.ids]
                    total += share * 0.5**i * float(DIVERGENCES["kl_div"](mine, goal).detach())
    assert total > 0
    assert float(loss.detach()) == pytest.approx(total / weight, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_eagle3_says_what_it_reads(small: Pair, tmp_path: Path) -> None:
    """The layers that a checkpoint captures are known before it is bound; its names are public."""
    module = made(Eagle3Module, small, capture=(0, 1, 1))
    module.save(tmp_path / "a", {})
    assert Eagle3(tmp_path / "a").wants.hidden == Eagle3(module).wants.hidden == (0, 1)
    own = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    own |= {f"layers.0.{x}.weight" for x in norms}
    own |= {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"}
    own |= {f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    assert set(module.state_dict()) == own
    assert module.layers[0].self_attn.q_proj.weight.shape == (32, 64)
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        Eagle3()
