"""The loss of heads against slow references."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from foretoken.drafters.medusa import MedusaHeads
from foretoken.drafters.shared.mistakes import Example, lesson
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.head_losses import heads_loss
from foretoken.trainable.lesson import estimate
from foretoken.trainable.losses import DIVERGENCES, Objective, nll
from lessons import packed, random_lesson, randomised


def heads_for(pair: Pair, seed: int = 0, scale: float = 0.3, **shape: object) -> MedusaHeads:
    return randomised(MedusaHeads(Facts.of(pair.target), **shape), seed, scale)  # type: ignore[arg-type]


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
    loss = heads(FrozenTarget(small.target).lesson(packed(records), (-1,)), objective)
    total = weight = 0.0
    for i in range(6):  # the records that are packed
        text = records.prompt(i) + records.answer(i)
        alone = collate(records, [[i]], len(text), 0.25)
        lesson = FrozenTarget(small.target).lesson(alone, (-1,))
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
    """Of every head."""
    heads = heads_for(small)
    heads(FrozenTarget(small.target).lesson(packed(records), (-1,)), Objective()).backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in heads.parameters())


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
    assert estimate(lesson.max_nodes, torch.zeros(2, 40, 3)).acceptance_length == 1


def test_a_row_that_begins_within_its_text() -> None:
    """As the windows of texts that drafters learn from while they serve: a head at a place before
    the row predicts nothing."""
    random = torch.Generator().manual_seed(0)
    head, table, states = (torch.randn(n, 8, generator=random) for n in (16, 16, 7))
    outputs = torch.randn(1, 8, 3, 8, generator=random)

    def loss(first: int) -> float:
        example = Example(list(range(8)), first, 1, [7], {-1: states})
        given = lesson([example], lambda x: x @ head.T, lambda t: table[t], torch.float32, 1.0)
        goal = Objective({"nll": 1.0}, 1.0)
        return heads_loss(given, outputs, lambda x: x @ head.T, [], goal).item()

    assert loss(0) == loss(100)
