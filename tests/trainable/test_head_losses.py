"""Heads: their logits, their loss and estimates against slow references, and what they draft."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.blockwise import Blockwise, BlockwiseHeads
from foretoken.drafters.hydra import Hydra, HydraHeads
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step, Verifier
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.train.batches import Batches, Rows, collate
from foretoken.train.frozen import Frozen
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.head_losses import heads_loss
from foretoken.trainable.lesson import Estimate, estimate
from foretoken.trainable.losses import DIVERGENCES, Objective, nll
from foretoken.trainable.rank_trees import plan_tree, tree_acceptance, tree_from_option
from foretoken.trainable.root_states import LastStates
from foretoken.tree import empty
from foretoken.trees.grow import MEDUSA_63
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.typical import Typical
from lessons import check_estimate, random_lesson, written


@pytest.fixture(scope="module")
def small() -> Pair:
    return tiny_pair(23)


def heads_for(pair: Pair, seed: int = 0, scale: float = 0.3, **shape: object) -> MedusaHeads:
    return randomised(MedusaHeads(Facts.of(pair.target), **shape), seed, scale)  # type: ignore[arg-type]


def randomised(heads: Any, seed: int = 0, scale: float = 0.3) -> Any:
    heads = heads.double()
    random = torch.Generator().manual_seed(seed)
    for weight in heads.parameters():
        noise = torch.randn(weight.shape, generator=random, dtype=torch.float64)
        weight.data.copy_(scale * noise)
    return heads


@pytest.fixture(scope="module")
def records(small: Pair) -> Records:
    """What the target writes greedily."""
    return written(small.target)


def packed(records: Records) -> Rows:
    return collate(records, [[0, 1, 2], [3, 4, 5]], 80, prompt_weight=0.25)


def by_hand(heads: MedusaHeads, state: Tensor, head: int) -> Tensor:
    """One head's logits at one place."""
    blocks = list(heads.children())[head]
    for block in list(blocks)[:-1]:  # type: ignore[call-overload]
        gate = block.linear.weight @ state + block.linear.bias
        state = state + gate * torch.sigmoid(gate)
    return list(blocks)[-1].weight @ state  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("mix", [{"nll": 1.0}, {"kl_div": 0.5, "nll": 0.5}])
def test_the_loss_is_the_papers_sum(small: Pair, records: Records, mix: dict[str, float]) -> None:
    """Every head at every place of packed rows, each from its own record alone, weighted by
    0.8^i; the target's states and distributions are those of each record run by itself."""
    heads, objective = heads_for(small, num_heads=3), Objective(mix, 0.8)
    loss = heads(Frozen(small.target).lesson(packed(records), (-1,)), objective)
    total = weight = 0.0
    for i in range(6):  # the records that are packed
        text = records.prompt(i) + records.answer(i)
        alone = collate(records, [[i]], len(text), 0.25)
        lesson = Frozen(small.target).lesson(alone, (-1,))
        states = lesson.hidden[-1][0]
        for n in range(len(text)):
            share = 1.0 if n >= len(records.prompt(i)) else 0.25
            weight += share
            for k in range(3):
                if n - 2 - k >= 0:
                    mine, goal = by_hand(heads, states[n - 2 - k], k), torch.tensor(text[n])
                    each = sum(
                        w
                        * (
                            nll(mine, goal)
                            if name == "nll"
                            else DIVERGENCES[name](mine, small.target.head(states[n - 1]))
                        )
                        for name, w in mix.items()
                    )
                    total += share * 0.8**k * float(torch.as_tensor(each).detach())
    assert float(loss.detach()) == pytest.approx(
        total / weight, rel=1e-6
    )  # the weights are float32


def test_gradients_reach_every_weight(small: Pair, records: Records) -> None:
    heads = heads_for(small)
    heads(Frozen(small.target).lesson(packed(records), (-1,)), Objective()).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in heads.parameters())


def test_heads_start_as_the_target(small: Pair, records: Records) -> None:
    """Untrained heads say what the target says, with a head of their own or the target's."""
    frozen = Frozen(small.target)
    states = frozen.lesson(packed(records), (-1,)).hidden[-1]
    for own in (True, False):
        heads = MedusaHeads(Facts.of(small.target), own_lm_heads=own).double()
        heads.copy_from(frozen)
        said = heads.logits(heads.states(states), frozen.head)
        torch.testing.assert_close(said[:, :, 2], frozen.head(states))


def test_a_tree_by_ranks() -> None:
    """A path is accepted as far as the text's ranks follow it, and no further than the budget."""
    paths = ((0,), (1,), (0, 0), (0, 2), (1, 1), (0, 2, 0))
    ranks = torch.tensor([[[0, 2, 0], [1, 1, 0], [2, 0, 0], [0, 1, 0], [0, 2, 0], [0, 2, 0]]])
    room = torch.tensor([[9, 9, 9, 9, 3, 0]])
    lengths = tree_acceptance(ranks, room, paths).sum(-1)
    assert lengths.tolist() == [[3, 2, 0, 1, 1, 0]]


def test_a_walk_by_hand() -> None:
    """Each step starts where the one before it ended; chances spread over the next roots."""
    room = torch.tensor([[-1, 9, 9, 9, 9, 9, -1, 9, -1]])
    reached = torch.zeros(1, 9, 2)
    reached[0, 1] = torch.tensor([1.0, 1.0])  # 1 -> 4
    reached[0, 4] = torch.tensor([0.5, 0.0])  # 4 -> 5 or 6, where the text is at its end
    found = estimate(room, reached)
    assert found.tokens == 6 and found.steps == pytest.approx(1 + 1 + 0.5 + 1)
    assert found.accepted == pytest.approx([1.5, 1.0])
    total = Estimate()
    total.add(found)
    total.add(found)
    assert total.acceptance_length == pytest.approx(6 / 3.5)


class HydraPlus(HydraHeads):
    """With the decoder layer over the states."""

    def __init__(self, facts: Facts, **shape: Any) -> None:
        super().__init__(facts, **{"prefix": {"heads": 2}, **shape})


CHAIN = ((0,), (0, 0), (0, 0, 0))
EACH: list[tuple[type[Any], type[Any], dict[str, Any]]] = [
    (Medusa, MedusaHeads, {"tree": CHAIN}),
    (Medusa, MedusaHeads, {"tree": "medusa"}),
    (Medusa, MedusaHeads, {"tree": ((0,), (1,), (1, 0))}),
    (Hydra, HydraHeads, {"tree": CHAIN}),
    (Hydra, HydraHeads, {"tree": "medusa"}),
    (Hydra, HydraPlus, {"tree": "medusa"}),
    (Hydra, HydraPlus, {"tree": CHAIN}),
    (Blockwise, BlockwiseHeads, {}),
    (Blockwise, BlockwiseHeads, {"num_speculative_tokens": 2}),
]


@pytest.mark.parametrize(("drafter_cls", "heads_cls", "options"), EACH)
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, drafter_cls: Any, heads_cls: Any, options: dict[str, Any]
) -> None:
    """Steps and accepted places, one by one, ends of texts and full budgets included."""
    shape = {"own_lm_heads": False} if heads_cls is not BlockwiseHeads else {}
    heads = randomised(heads_cls(Facts.of(small.target), **shape), scale=0.03)
    check_estimate(drafter_cls(heads, **options), heads, small.target, records, TargetOnly())


def test_hydra_heads_see_what_was_drafted(small: Pair, records: Records) -> None:
    """A lesson's states are the heads' own on the true tokens, each of which counts."""
    heads = randomised(HydraHeads(Facts.of(small.target), num_layers=2))
    lesson = Frozen(small.target).lesson(packed(records), (-1,))
    states = heads.head_states(lesson, torch.tensor([[9, 5]]))
    for i, head in enumerate(heads.heads):
        near = lesson.embed(lesson.tokens[0, 6 : 7 + i])
        torch.testing.assert_close(states[0, 1, i], head(lesson.hidden[-1][0, 5], near))
        other = head(lesson.hidden[-1][0, 5], near + 1)
        assert not torch.allclose(states[0, 1, i], other)


def test_the_layer_before_hydras_heads(small: Pair, records: Records) -> None:
    """At first it changes nothing; its output counts, and each of its weights learns."""
    frozen, facts = Frozen(small.target), Facts.of(small.target)
    lesson = frozen.lesson(packed(records), (-1,))
    fresh = HydraPlus(facts, own_lm_heads=False).double()
    places = torch.arange(lesson.tokens.shape[1])[None]
    said = fresh.logits(fresh.head_states(lesson, places), lesson.head)
    torch.testing.assert_close(said[:, :, 1], lesson.head(lesson.hidden[-1]))
    heads = randomised(fresh, scale=0.1)
    heads(lesson, Objective({"kl_div": 1.0})).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in heads.parameters())
    with_layer = heads.head_states(lesson, places)
    heads.prefix = None
    assert not torch.allclose(with_layer, heads.head_states(lesson, places))


def test_trees() -> None:
    """By name, planned for rates, given; a plan takes the likeliest paths."""
    rates = [[0.6, 0.22, 0.1], [0.5, 0.3]]
    assert plan_tree(rates, 5) == ((0,), (0, 0), (1,), (0, 1), (1, 0))
    assert tree_from_option("medusa", 63, None) == MEDUSA_63
    assert tree_from_option("planned", 2, rates) == ((0,), (0, 0))
    assert tree_from_option([[0], [1]], 63, None) == ((0,), (1,))
    with pytest.raises(ForetokenError, match="no acceptance rates"):
        tree_from_option("planned", 5, None)
    with pytest.raises(ForetokenError, match="tree is 'oak'"):
        tree_from_option("oak", 5, None)


def test_forks_start_behind_the_prompt() -> None:
    """A sample that is admitted late drafts from the prompt, however far the first one is."""
    states, none = LastStates(), torch.empty(1, 0)
    first, copy = (Sequence.start([1, 2, 3], SamplingParams()) for _ in range(2))
    for read, path in ((2, []), (0, [3])):
        hidden = {-1: torch.arange(4.0)[None, :, None] + 10 * len(path)}
        scores = Scores(none, none, none, hidden)
        step = Step([], path, 3, 0, empty(1, none.device), scores, read=read)
        states.observe([first], [step])
    states.fork(first, copy)
    rows, held = states.available([first, Sequence.start([1], SamplingParams()), copy])
    assert rows == [0, 2] and held is not None and held.tolist() == [[13.0], [1.0]]


def test_typical_acceptance_takes_more(small: Pair) -> None:
    """At temperature 0 it is greedy decoding; above, drafts stray and more of them are kept."""
    heads = randomised(MedusaHeads(Facts.of(small.target), own_lm_heads=False), scale=0.03)
    prompts = [[1, 2, 3], [4, 5], [9] * 6]

    def passes(rule: Verifier, params: SamplingParams) -> tuple[int, int, list[list[int]]]:
        outputs = serve(small.target, Medusa(heads), rule, prompts, params)
        stats = [output.stats for output in outputs]
        ids = [output.token_ids for output in outputs]
        return sum(s.passes for s in stats), sum(s.strayed for s in stats), ids

    cold = SamplingParams(temperature=0, max_tokens=40)
    assert passes(Typical(), cold)[2] == passes(TargetOnly(), cold)[2]
    warm = SamplingParams(temperature=1.0, max_tokens=40, seed=1, ignore_eos=True)
    typical, exact = passes(Typical(), warm), passes(TargetOnly(), warm)
    assert typical[0] < exact[0] and typical[1] > 0 == exact[1]


def test_checkpoints(small: Pair, tmp_path: Path) -> None:
    """Written and read again; another target, method, shape or file is refused in a sentence."""
    heads, access = heads_for(small, num_heads=2), ModelTarget(small.target, 1, 32)
    heads.notes["rates"] = [[0.5], [0.25]]
    heads.save(tmp_path / "a", {"target_name": "tiny"})
    read = MedusaHeads.load(tmp_path / "a", access)
    assert read.notes == heads.notes and read.shape == heads.shape
    for name, weight in heads.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight)
    assert {"0.0.linear.weight", "0.0.linear.bias", "1.1.weight"} <= set(heads.state_dict())
    other = ModelTarget(tiny_pair(23, width=16).target, 1, 32)
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        MedusaHeads.load(tmp_path / "a", other)
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        MedusaHeads.load(heads, other)
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text())
    for change, said in (
        ({"foretoken_method": "hydra"}, "of method 'hydra' and not of 'medusa'"),
        ({"shape": {"num_heads": 3}}, "doesn't hold the tensors"),
        ({"shape": {"heads": 3}}, "doesn't fit"),
        ({"target": {}}, "is no checkpoint"),
    ):
        path.write_text(json.dumps({**config, **change}))
        with pytest.raises(ForetokenError, match=said):
            MedusaHeads.load(tmp_path / "a", access)
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        Medusa()


def test_batches_follow_from_their_number(records: Records) -> None:
    """The same rows for the same seed and number; whole records, cut at the row's end alone."""
    batches = Batches(records, 3, 40, seed=5)
    first, again = batches.batch(7), Batches(records, 3, 40, seed=5).batch(7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.tokens, batches.batch(8).tokens)
    assert not torch.equal(first.tokens, Batches(records, 3, 40, seed=6).batch(7).tokens)
    texts = [records.prompt(i) + records.answer(i) for i in range(len(records))]
    for row, positions in zip(first.tokens.tolist(), first.positions.tolist(), strict=True):
        starts = [i for i, place in enumerate(positions) if place == 0] + [40]
        for a, b in itertools.pairwise(starts):
            assert any(text[: b - a] == row[a:b] for text in texts)


def test_a_trained_module_is_of_its_drafter() -> None:
    assert issubclass(Medusa.module, Trained) and Medusa.module.method == "medusa"


def test_dynamic_weights(checkpoints: tuple[Path, Path]) -> None:
    """A head's loss counts as often as the heads before it, after the same root, are right."""
    lesson = random_lesson(checkpoints[0], 0.0)
    torch.manual_seed(0)
    states = torch.randn(2, 40, 3, 97)

    def logits(x: Tensor) -> Tensor:
        return x

    found = heads_loss(lesson, states, logits, [], Objective({"nll": 1.0}, 1.0, dynamic=0.5))
    total = torch.zeros(())
    for b in range(2):
        for place in range(40):
            there = torch.ones(())
            for head in range(3):
                token = place + 2 + head
                if token >= 40 or lesson.records[b, token] != lesson.records[b, place]:
                    break
                loss = -states[b, place, head].log_softmax(-1)[lesson.tokens[b, token]]
                total += lesson.weight[b, token] * loss * there**0.5
                there = there * (-loss).exp()
    assert found.item() == pytest.approx((total / lesson.weight.sum()).item(), rel=1e-4)
    assert estimate(lesson.room, torch.zeros(2, 40, 3)).acceptance_length == 1
