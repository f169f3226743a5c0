"""Blocks of tokens appended to a text: what they attend to, and their loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from foretoken.drafters.lookahead_embeddings import PassTokens
from foretoken.models.hf.adapter import HFModel
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable import appended
from foretoken.trainable.appended import block_ranks, draw_places
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.tree import DraftTree, Kind, chains
from foretoken.trees.join import join
from lessons import GREEDY, after_text, seeded
from stored_models import windowed


@pytest.mark.parametrize("kind", ["native", "adapter", "windowed"])
def test_appended_blocks_see_their_text_alone(small: Pair, records: Records, kind: str) -> None:
    """In packed rows, whatever was read in between; gradients reach the embeddings alone."""
    model = windowed(23) if kind == "windowed" else small.target
    if kind == "adapter":
        model = HFModel(small.transformers)
    module, frozen = seeded(PassTokens, small, num_tokens=2), FrozenTarget(model)
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 44, 0.0), (-1,))
    assert frozen.lesson(collate(records, [[4], [5]], 20, 0.0), (-1,)).hidden[-1].isfinite().all()
    places = torch.tensor([[3, 25, 30], [1, 0, 33]])
    states = module.states(lesson, places)
    for b, row in enumerate(places.tolist()):
        for r, place in enumerate(row):
            first = place - int(lesson.positions[b, place])
            text = lesson.tokens[b, first : place + 1].tolist()
            torch.testing.assert_close(states[b, r], after_text(model, text, module.embeddings))
    [grad] = torch.autograd.grad(states[0, 1, 1].sum(), module.embeddings)
    assert (grad.abs().sum(-1) > 0).all()


def test_the_loss_by_hand(small: Pair, records: Records) -> None:
    """Each guess's mean over the places drawn, weighed by decay^i."""
    module, frozen = seeded(PassTokens, small, num_tokens=3, blocks=4), FrozenTarget(small.target)
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
                    mine = frozen.head(after_text(small.target, text, module.embeddings)[i])
                    known = frozen.head(lesson.hidden[-1][b, goal - 1])
                    share = float(lesson.weight[b, goal])
                    loss_i += share * float(DIVERGENCES["kl_div"](mine, known).detach())
                    weight_i += share
        total += 0.5**i * loss_i / weight_i
    assert float(loss.detach()) == pytest.approx(total, rel=1e-6)
    loss.backward()
    assert (module.embeddings.grad.abs().sum(-1) > 0).all()


def test_predictions_end_with_their_text(
    small: Pair, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block at the end of one predicts nothing of the next one in its row, nor after the row; one
    that nobody wants predicts nothing, however many run at once."""
    module, frozen = seeded(PassTokens, small, num_tokens=3), FrozenTarget(small.target)
    lesson = frozen.lesson(collate(records, [[0, 1]], 44, 0.25), (-1,))
    everywhere = torch.ones_like(lesson.tokens, dtype=torch.bool)
    states = partial(module.states, lesson)
    ranks = block_ranks(lesson, everywhere, states, 2, 3, lesson.head)[0]
    owner = lesson.records[0].tolist()
    for place in range(44):
        for i, goal in enumerate(range(place + 2, place + 5)):
            inside = goal < 44 and owner[goal] == owner[place]
            assert (ranks[place, i] < 23) == inside
    monkeypatch.setattr(appended, "_PLACES", 10)
    wanted = everywhere & (torch.arange(44) % 7 == 5)
    found = block_ranks(lesson, wanted, states, 2, 3, lesson.head)[0]
    assert torch.equal(found[wanted[0]], ranks[wanted[0]])
    assert (found[~wanted[0]] == 1 << 30).all()


def test_places_are_drawn_where_something_follows(small: Pair, records: Records) -> None:
    """Not at a row's end, whatever it begins with."""
    rows = collate(records, [[0, 1], [2, 3]], 44, 0.25)
    lesson = FrozenTarget(small.target).lesson(rows, (-1,))
    assert draw_places(lesson, 42, 2).sort(1).values.tolist() == [[*range(42)]] * 2
    lesson = replace(lesson, weight=(lesson.tokens % 5 == 0).float())
    for first in (1, 2):
        counts = lesson.weight[:, first:] > 0
        drawn = draw_places(lesson, int(counts.sum(1).min()), first)
        assert counts.gather(1, drawn).all()


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
        want = after_text(model, [3, 1, 4], torch.stack((one[0], two[1])).double())
    torch.testing.assert_close(out, want)
