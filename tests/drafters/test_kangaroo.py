"""Kangaroo: what the shallow layers have run is not run again, and changes nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.kangaroo import Kangaroo, KangarooAdapter
from foretoken.draws import GreedyDraws
from foretoken.models.native.transformer import Transformer
from foretoken.models.ppd import PPD
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.testing import Pair, check_greedy, serve, tiny_pair
from foretoken.train.batches import Batches, collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable import shallow
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.trainable.shallow import ShallowModel
from foretoken.tree import DraftTree
from foretoken.verify.speculative import Speculative
from lessons import (
    GREEDY,
    LIMIT,
    PROMPTS,
    check_estimate,
    check_expectation,
    late,
    taught,
    written,
)


@pytest.fixture(scope="module")
def small() -> Pair:
    return tiny_pair(23, layers=3)


@pytest.fixture(scope="module")
def records(small: Pair) -> Records:
    """What the target writes greedily."""
    return written(small.target)


@pytest.fixture(scope="module")
def adapter(small: Pair, records: Records) -> KangarooAdapter:
    """Trained for a few steps on these very texts, so that drafts are accepted."""
    torch.manual_seed(3)
    made, goal = KangarooAdapter(Facts.of(small.target)).double(), Objective({"kl_div": 1.0}, 1.0)
    batches = Batches(records, 4, 64, 0)
    found: KangarooAdapter = taught(made, small.target, batches.batch, goal, steps=60)
    return found


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, adapter: KangarooAdapter, threshold: float
) -> None:
    """Places and steps, the second exit and the ends of texts included; the text stays."""
    drafter = Kangaroo(adapter, 4, threshold)
    check_estimate(drafter, adapter, small.target, records, Speculative())


def test_the_expectation_of_drawn_chains(small: Pair, adapter: KangarooAdapter) -> None:
    """The second exit included."""
    check_expectation(Kangaroo(adapter, 4, 0.3), adapter, small.target, Speculative())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_verification_runs_the_upper_layers_alone(
    small: Pair, adapter: KangarooAdapter, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """In batches of drafts of unlike length no token of a step goes through the lower layers
    twice, and the scores are those of a whole pass."""
    ran: list[int] = []
    run, scored = Transformer.run, ModelTarget.score
    checked = []

    def noted(self: Transformer, states: Any, feed: Any, cache: Any, sublayers: Any) -> Any:
        ran.append(states.shape[1] if min(sublayers) == 0 else 0)
        return run(self, states, feed, cache, sublayers)

    def compared(self: ModelTarget, sequences: Any, trees: Any) -> Any:
        out = scored(self, sequences, trees)
        assert sum(ran) == trees.nodes + 1 or not trees.nodes
        ran.clear()
        plain = scored(self, sequences, replace(trees, resume=None))
        for row, count in enumerate(trees.counts):
            torch.testing.assert_close(out.logits[row, : count + 1], plain.logits[row, : count + 1])
            torch.testing.assert_close(
                out.hidden[2][row, : count + 1], plain.hidden[2][row, : count + 1]
            )
        checked.append(trees.counts)
        return out

    monkeypatch.setattr(Transformer, "run", noted)
    monkeypatch.setattr(ModelTarget, "score", compared)
    params = [
        dataclasses.replace(GREEDY, temperature=temperature, max_tokens=12 + i, seed=i)
        for i in range(len(PROMPTS))
    ]
    drafter = Kangaroo(adapter, 4, 0.3)
    serve(small.target, drafter, Speculative(), PROMPTS, params, slots=4)
    assert any(len(set(counts)) > 1 for counts in checked)


def begun(target: ModelTarget, drafter: Kangaroo, texts: list[list[int]]) -> list[Sequence]:
    """Sequences whose texts but for the last token are read."""
    target.bind(drafter)
    sequences = [Sequence.start(text, GREEDY) for text in texts]
    for sequence in sequences:
        target.begin(sequence)
        drafter.begin(sequence)
    while late := [s for s in sequences if target.pending(s)]:
        prefill(target, drafter, late, 3)
    return sequences


@torch.inference_mode()
def test_distributions_follow_from_the_text(small: Pair, adapter: KangarooAdapter) -> None:
    """After drafts that were accepted in part, the next distribution is the one of the text read
    anew."""
    drafter = Kangaroo(adapter, 4, 0.0)
    target = ModelTarget(small.target, 3, 64)
    sequences, longest = begun(target, drafter, PROMPTS[:3]), 0
    for _ in range(5):
        steps = step(target, drafter, Speculative(), sequences, [4, 3, 2])
        longest = max(longest, *(len(each.path) for each in steps))
        new, again = Kangaroo(adapter), ModelTarget(small.target, 3, 64)
        copies = begun(again, new, [sequence.tokens for sequence in sequences])
        torch.testing.assert_close(new._lm.root_logits(copies), drafter._lm.root_logits(sequences))
    assert longest > 1


@torch.inference_mode()
def test_a_long_draft_beside_a_text_whose_context_ends(
    small: Pair, adapter: KangarooAdapter
) -> None:
    """The short one's row has room to run along."""
    drafter, target = Kangaroo(adapter, 80, 0.0), ModelTarget(small.target, 2, 120)
    sequences = begun(target, drafter, [[1, 2, 3] * 39, [4, 5, 6]])
    assert drafter.draft(sequences, [1, 80], GreedyDraws()).counts == [1, 80]


@torch.inference_mode()
def test_other_drafts_are_scored_as_a_whole(small: Pair, adapter: KangarooAdapter) -> None:
    """Another token, the same ones as siblings, a longer chain, rows in another order, passes in
    between, or states that nobody handed over: the states of the draft are used for none but its
    own trees."""
    drafter, target = Kangaroo(adapter, 3, 0.0), ModelTarget(small.target, 2, 64)
    sequences, plain = begun(target, drafter, [[1, 2, 3], [4, 5, 6]]), GreedyDraws()
    mine = drafter.draft(sequences, [3, 3], plain)
    assert mine.resume is not None
    other, flat = mine.tokens.clone(), torch.tensor([[0, 0, 0]] * 2)
    other[:, 1] = (other[:, 1] + 1) % 23

    def own() -> DraftTree:
        return drafter.draft(sequences, [3, 3], plain)

    def overwritten() -> DraftTree:
        tree = own()
        target.draft_states(sequences, torch.tensor([[7], [8]]), 1, range(4))
        return tree

    def outdated() -> DraftTree:
        tree = own()
        target.score(sequences, DraftTree(other, [3, 3]))
        return tree

    resumed = [
        (own, 1),
        (lambda: own().trim([2, 2]), 1),
        (lambda: own().take([1, 0]), -1),
    ]
    whole = [
        (lambda: replace(own(), resume=None), 1),
        (lambda: replace(own(), tokens=other), 1),
        (lambda: replace(own(), parents=flat), 1),
        (lambda: replace(own(), tokens=mine.tokens[:, [0, 1, 2, 2, 2]], counts=[5, 5]), 1),
        (lambda: replace(own(), tokens=mine.tokens.flip(0)), -1),
        (overwritten, 1),
        (outdated, 1),
    ]
    forward, passes = target.model.forward, []

    def noted(*given: Any) -> Any:
        passes.append(given)
        return forward(*given)

    for entered, cases in ((True, resumed), (False, whole)):
        for make, order in cases:
            tree = make()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(target.model, "forward", noted)
                out = target.score(sequences[::order], tree)
            assert (not passes) == entered
            passes.clear()
            expected = target.score(sequences[::order], replace(tree, resume=None))
            torch.testing.assert_close(out.logits, expected.logits)


@torch.inference_mode()
def test_states_of_other_layers_take_a_whole_pass(small: Pair, adapter: KangarooAdapter) -> None:
    """A pass that resumes after the exit layer has those of it and the last ones, and no others."""
    drafter, target = Kangaroo(adapter, 3, 0.0), ModelTarget(small.target, 1, 64)
    sequences = begun(target, drafter, [[1, 2, 3]])
    for wanted in ((2,), (2, -1), (1, 2), (0, -1)):
        target.hidden = wanted
        tree = drafter.draft(sequences, [3], GreedyDraws())
        out = target.score(sequences, tree)
        expected = target.score(sequences, replace(tree, resume=None))
        for layer in wanted:
            torch.testing.assert_close(out.hidden[layer], expected.hidden[layer])


@pytest.mark.parametrize("method", ["pld+kangaroo", "kangaroo+pld", "kangaroo+eagle2"])
@pytest.mark.parametrize("wrap", [None, PPD()])
def test_together_with_others(
    small: Pair, adapter: KangarooAdapter, method: str, wrap: PPD | None
) -> None:
    """Another drafter's nodes are scored by whole passes, and so are states that it reads; a target
    that scores in its own way stays exact with it."""
    from foretoken.trainable.eagle import EagleModule

    options: dict[str, Any] = {"method": method, "kangaroo": {"model": adapter}}
    if "eagle2" in method:
        options["eagle2"] = {"model": EagleModule(Facts.of(small.target)).double().eval()}
    check_greedy(
        lambda _: build(options).drafter,
        build(options).verifier,
        small,
        slots=3,
        prompts=PROMPTS[:4],
        tokens=LIMIT,
        wrap=wrap,
    )


def test_weights_learn_and_have_the_public_names(small: Pair, records: Records) -> None:
    """A gradient for each; exit layers that aren't there, and other targets, are refused."""
    made = KangarooAdapter(Facts.of(small.target)).double()
    lesson = FrozenTarget(small.target).lesson(
        collate(records, [[0, 1], [2, 3]], 40, 0.25), made.hidden
    )
    made(lesson, Objective({"kl_div": 1.0})).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in made.parameters())
    names = {"norm.weight", "layers.0.input_layernorm.weight"}
    names |= {f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"}
    assert set(made.state_dict()) == names
    assert made.hidden == (2, -1)
    with pytest.raises(ForetokenError, match="exit_layer is 3 and the target has 3 layers"):
        KangarooAdapter(Facts.of(small.target), exit_layer=3)
    other = ModelTarget(tiny_pair(23, width=16, layers=3).target, 1, 32)
    with pytest.raises(ForetokenError, match=r"hidden_size 32 and this target has 16"):
        Kangaroo(made).bind(other)


def test_states_that_wait_are_bounded(
    small: Pair, adapter: KangarooAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long others draft; then it drafts as if it had read all of them at once."""
    waiting: list[int] = []
    known = ShallowModel.follow

    def noted(self: Any, sequences: Any, steps: Any) -> None:
        known(self, sequences, steps)
        waiting.extend(len(s.state[self]) for s in sequences)

    monkeypatch.setattr(ShallowModel, "follow", noted)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

    def run(most: int) -> Any:
        waiting.clear()
        monkeypatch.setattr(shallow, "_MOST_WAITING", most)
        outputs = serve(
            small.target, late(Kangaroo)(adapter, 4, 0.3), Speculative(), PROMPTS[:2], params
        )
        return [(o.token_ids, o.outputs[0].accepted) for o in outputs]

    few = run(8)
    assert max(waiting) <= 8 and any(any(accepted) for _, accepted in few)
    assert few == run(10_000) and max(waiting) > 20
