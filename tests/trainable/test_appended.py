"""Drafters whose guesses come all from one pass over appended tokens: losses, estimates, drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken.drafters.lookahead_embeddings import LookaheadEmbeddings, PassTokens
from foretoken.drafters.parallel_prompt import ParallelPrompt, ParallelPromptTokens
from foretoken.drafters.shared.prompt_trees import PromptTree, PromptTrees
from foretoken.drafters.specdec import SpecDec, SpecDecModel
from foretoken.models.feed import Feed
from foretoken.models.hf.adapter import HFModel
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import Frozen
from foretoken.train.records import Records
from foretoken.trainable.appended import draw_places
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.tree import DraftTree, Kind, chains
from foretoken.trees.join import join
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, check_estimate, written


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


def alone(model: Any, tokens: list[int], embeddings: torch.Tensor) -> torch.Tensor:
    """[A, D] the model's last states at embeddings after a text, by one pass over both."""
    cache, many = model.new_cache(1, 64), len(embeddings)
    ids = torch.tensor([[*tokens, *[0] * many]])
    length = ids.shape[1]
    own = torch.arange(length)[None] >= len(tokens)
    inputs = torch.zeros(1, length, embeddings.shape[1], dtype=embeddings.dtype)
    inputs[0, len(tokens) :] = embeddings
    feed = Feed(
        ids,
        torch.arange(length)[None],
        torch.ones(1, length, length, dtype=torch.bool).tril(),
        [0],
        [0],
        65,
        logits=False,
        replaced=(own, inputs),
    )
    return model.forward(feed, cache, (-1,)).hidden[-1][0, len(tokens) :]


@pytest.mark.parametrize("kind", ["native", "adapter"])
def test_appended_blocks_see_their_text_alone(small: Pair, records: Records, kind: str) -> None:
    """In packed rows, whatever was read in between; gradients reach the embeddings alone."""
    model = small.target if kind == "native" else HFModel(small.transformers)
    module, frozen = made(PassTokens, small, num_tokens=2), Frozen(model)
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 44, 0.0), (-1,))
    frozen.lesson(collate(records, [[4], [5]], 20, 0.0), (-1,))
    places = torch.tensor([[3, 25, 30], [1, 0, 33]])
    states = module.states(lesson, places)
    for b, row in enumerate(places.tolist()):
        for r, place in enumerate(row):
            first = place - int(lesson.positions[b, place])
            text = lesson.tokens[b, first : place + 1].tolist()
            torch.testing.assert_close(states[b, r], alone(model, text, module.embeddings))
    [grad] = torch.autograd.grad(states[0, 1, 1].sum(), module.embeddings)
    assert (grad.abs().sum(-1) > 0).all()


def test_the_loss_by_hand(small: Pair, records: Records) -> None:
    """Each guess's mean over the places drawn, weighed by decay^i."""
    module, frozen = made(PassTokens, small, num_tokens=3, blocks=4), Frozen(small.target)
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 44, 0.25), (-1,))
    torch.manual_seed(5)
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    torch.manual_seed(5)
    places = draw_places(lesson, 4, 2)
    assert (lesson.weight.gather(1, places + 2) > 0).all()
    total = 0.0
    for i in range(3):
        loss_i = weight_i = 0.0
        for b, row in enumerate(places.tolist()):
            for place in row:
                goal = place + 2 + i
                if goal < 44 and lesson.records[b, goal] == lesson.records[b, place]:
                    first = place - int(lesson.positions[b, place])
                    text = lesson.tokens[b, first : place + 1].tolist()
                    mine = frozen.head(alone(small.target, text, module.embeddings)[i])
                    said = frozen.head(lesson.hidden[-1][b, goal - 1])
                    share = float(lesson.weight[b, goal])
                    loss_i += share * float(DIVERGENCES["kl_div"](mine, said).detach())
                    weight_i += share
        total += 0.5**i * loss_i / weight_i
    assert float(loss.detach()) == pytest.approx(total, rel=1e-6)
    loss.backward()
    assert (module.embeddings.grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("most", [4, 2])
def test_pass_estimates_what_is_served(small: Pair, records: Records, most: int) -> None:
    module = made(PassTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    drafter = LookaheadEmbeddings(module, num_speculative_tokens=most)
    total = check_estimate(drafter, module, small.target, records, Speculative())
    assert total.acceptance_length > 1.9 and total.accepted[1] > 0


def test_prompt_tokens_learn(small: Pair, records: Records) -> None:
    """They begin as the text's mean embedding, and the loss falls."""
    module, frozen = made(PassTokens, small, blocks=16).train(), Frozen(small.target)
    counts = records.counts(23)
    module.set_token_counts(counts)
    module.copy_from(frozen)
    mean = (counts[:, None] * frozen.embed(torch.arange(23))).sum(0) / counts.sum()
    torch.testing.assert_close(module.embeddings[1], mean, check_dtype=False)
    lesson = frozen.lesson(collate(records, [[0, 1, 2], [3, 4, 5]], 80, 0.0), (-1,))
    optimizer, seen = torch.optim.Adam(module.parameters(), 0.05), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = module(lesson, Objective({"kl_div": 1.0}))
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])


@pytest.mark.parametrize("kind", ["native", "adapter"])
def test_extra_tokens_of_a_tree(small: Pair, kind: str) -> None:
    """A node with a number is read as that embedding, wherever trimming and joining put it."""
    model = small.target if kind == "native" else HFModel(small.transformers)
    target = ModelTarget(model, 2, 64, hidden=(-1,))
    one, two = (torch.randn(2, 32, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    assert (target.extra_tokens(one), target.extra_tokens(two)) == (1, 3)
    sequence = Sequence.start([3, 1, 4], GREEDY)
    target.begin(sequence)
    with torch.inference_mode():
        target.prefill([sequence], 9)
        numbers = torch.tensor([[1, 4, 2]])
        prompts = DraftTree(torch.zeros_like(numbers), [3], kind=Kind.AUXILIARY, extras=numbers)
        tree = join((chains([[5, 6]], torch.device("cpu")), prompts)).trim([4]).take([0])
        assert tree.extras is not None and tree.extras.tolist() == [[0, 0, 1, 4]]
        out = target.score([sequence], tree).hidden[-1][0, 3:]
        want = alone(model, [3, 1, 4], torch.stack((one[0], two[1])).double())
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("nodes", [60, 7])
def test_parallel_prompts_estimate_what_is_served(
    small: Pair, records: Records, nodes: int
) -> None:
    """The walk from state to state included."""
    module = made(ParallelPromptTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    module.notes["rates"] = [[0.5, 0.2, 0.1, 0.05], [0.4, 0.2, 0.1], [0.3, 0.2]]
    drafter = ParallelPrompt(module, tree_nodes=nodes)
    total = check_estimate(drafter, module, small.target, records, TargetOnly())
    assert total.acceptance_length > 1.02


def test_prompt_tokens_count_their_ranks(small: Pair, records: Records) -> None:
    """Rates are of the tokens after the root, from states before it."""
    module, frozen = made(ParallelPromptTokens, small, num_tokens=2), Frozen(small.target)
    lesson = frozen.lesson(collate(records, [[0, 1]], 44, 0.0), (-1,))
    with torch.no_grad():
        ranks = module.ranks(lesson)
    for root in (lesson.room[0] >= 0).nonzero()[:, 0].tolist():
        first = root - int(lesson.positions[0, root])
        text = lesson.tokens[0, first:root].tolist()
        said = frozen.head(alone(small.target, text, module.embeddings))
        for i in range(2):
            goal = root + 1 + i
            if goal < 44 and lesson.records[0, goal] == lesson.records[0, root]:
                want = (said[i] > said[i, lesson.tokens[0, goal]]).sum()
                assert ranks[0, root, i] == want
            else:
                assert ranks[0, root, i] > 23
    module.note_counts(module.count_held_out(lesson))
    assert len(module.notes["rates"]) == 2


def test_trees_share_their_nodes_out() -> None:
    """States draft as deep as they can; sure guesses ask for the next ones after the last; what
    never helps is left out."""
    trees = PromptTrees([[0.6, 0.2], [0.4, 0.2], [0.3]], 20)
    for nodes in (0, 1, 5, 20):
        for state in range(4):
            tree = trees.of(state, nodes)
            assert len(tree.paths) + sum(tree.prompts) <= nodes
            assert max(map(len, tree.paths), default=0) <= state
            assert max(tree.prompts) <= 3
    assert trees.of(0, 20) == PromptTree((), (3,))
    assert (trees.of(0, 1).prompts, trees.of(1, 1).paths) == ((1,), ((0,),))
    assert PromptTrees([[0.0], [0.0]], 9).of(0, 9) == PromptTree((), (0,))
    sure = PromptTrees([[1.0], [1.0], [1.0]], 20).of(3, 6)
    assert sure.paths == ((0,), (0, 0), (0, 0, 0)) and sure.prompts == (0, 0, 0, 3)
    assert sure.follow([0, 0, 1]) == (2, 2) and sure.follow([4]) == (0, 0)


@pytest.mark.parametrize("most", [5, 1])
def test_specdec_estimates_what_is_served(small: Pair, records: Records, most: int) -> None:
    """Training is by transformers' arithmetic, serving by the native model's."""
    alike = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
    module = made(SpecDecModel, small, masks=3, tie_word_embeddings=False, **alike)
    module.masks.data = torch.randn(3, 32).double()
    module.base.lm.load_state_dict(small.transformers.state_dict())  # else it is never right
    drafter = SpecDec(module, num_speculative_tokens=most)
    total = check_estimate(drafter, module, small.target, records, Speculative())
    assert total.acceptance_length > 1.9
    assert most == 1 or total.accepted[1] > 0


def test_specdec_learns_and_keeps_its_shape(small: Pair, records: Records, tmp_path: Path) -> None:
    """Gradients reach every weight, and a checkpoint needs nothing but itself."""
    module, frozen = made(SpecDecModel, small, masks=2, num_hidden_layers=1), Frozen(small.target)
    module.copy_from(frozen)
    lesson = frozen.lesson(collate(records, [[0, 1, 2], [3, 4, 5]], 80, 0.0), (-1,))
    optimizer, seen = torch.optim.Adam(module.parameters(), 0.01), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = module(lesson, Objective({"nll": 1.0}))
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())
    assert seen[-1] < 0.8 * seen[0]
    module.save(tmp_path / "a", {})
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["shape"]["num_hidden_layers"] == 1 and "model" not in config["shape"]
    read = SpecDecModel.load(tmp_path / "a", ModelTarget(small.target, 1, 32))
    for name, weight in module.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight)
