"""MLP speculators: what stages read, and what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.drafters.mlp_speculator import MlpSpeculator, MlpSpeculatorStages
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.trees.grow import Frontier, expand, widths_of
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate, packed, randomised

TIED: dict[str, Any] = {"tied": True, "scaled": True, "inner_width": 24}


@pytest.mark.parametrize("shape", [{}, TIED], ids=["untied", "tied"])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, shape: dict[str, Any]
) -> None:
    """Steps and accepted places, one by one, ends of texts and full budgets included."""
    stages = randomised(MlpSpeculatorStages(Facts.of(small.target), **shape))
    check_estimate(MlpSpeculator(stages, tree="paper"), stages, small.target, records, TargetOnly())


@pytest.mark.parametrize("shape", [{}, TIED], ids=["untied", "tied"])
def test_every_weight_learns(small: Pair, records: Records, shape: dict[str, Any]) -> None:
    """By the gradient of the loss, which shared weights get once from each stage."""
    stages = randomised(MlpSpeculatorStages(Facts.of(small.target), num_heads=3, **shape))
    lesson, goal = FrozenTarget(small.target).lesson(packed(records), (-1,)), Objective()
    loss = stages(lesson, goal)
    loss.backward()
    for weight in stages.parameters():
        assert weight.grad is not None
        at = divmod(int(weight.grad.abs().argmax()), weight.shape[-1])
        place = at if weight.ndim == 2 else at[1:]
        with torch.no_grad():
            weight[place] += 1e-6
            more = stages(lesson, goal)
            weight[place] -= 1e-6
        slope = float((more - loss.detach()) / 1e-6)
        assert float(weight.grad[place]) == pytest.approx(slope, rel=1e-3)


@torch.inference_mode()
def test_each_stage_reads_the_way_to_its_node(small: Pair) -> None:
    """From its row's state and root, token by token."""
    stages = randomised(MlpSpeculatorStages(Facts.of(small.target)))
    paths = ((0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0))
    drafter = MlpSpeculator(stages, tree=paths)
    drafter.bind(ModelTarget(small.target, 2, 32))
    states, roots = torch.randn(2, small.target.width, dtype=torch.float64), torch.tensor([3, 7])
    ask, asked = drafter.ask(states, roots), 0

    def noted(frontier: Frontier) -> torch.Tensor:
        nonlocal asked
        probs = ask(frontier)
        for row, ways in enumerate(frontier.contexts()):
            for found, way in zip(probs[row], ways, strict=True):
                state = stages.first(states[row])
                for i, token in enumerate([int(roots[row]), *way]):
                    state = stages.stage(i, state, torch.tensor(token))
                torch.testing.assert_close(found, stages.head_logits(i, state).softmax(-1))
                asked += 1
        return probs

    expand(noted, widths_of(paths), [9, 9], torch.device("cpu"))
    assert asked == 2 * (1 + 2 + 2)


def test_what_belongs_to_the_vocabulary(small: Pair) -> None:
    """Embeddings and heads, which an optimiser for matrices between states leaves to another."""
    stages = MlpSpeculatorStages(Facts.of(small.target))
    own = {id(weight) for weight in stages.of_vocabulary()}
    assert own == {id(w) for layer in (*stages.emb, *stages.head) for w in layer.parameters()}
