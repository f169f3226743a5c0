"""What heads learn that know a part of the tokens."""

from __future__ import annotations

import pytest
import torch

from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.trainable.reduced_objective import ReducedObjective


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_an_objective_over_them(name: str) -> None:
    """The target's distribution among the head's tokens; nothing where the text's isn't one."""
    ids, covered = torch.tensor([1, 3, 4]), torch.tensor([False, True, False, True, True])
    random = torch.Generator().manual_seed(0)
    drafter, target = torch.randn(2, 3, generator=random), torch.randn(2, 5, generator=random)
    reduced = ReducedObjective({name: 1.0}, ids=ids, covered=covered)
    found = reduced(drafter, target, torch.tensor([3, 0]))
    wanted = Objective({name: 1.0})(drafter, target[:, ids], torch.tensor([1, 0]))
    assert found.tolist() == pytest.approx([float(wanted[0]), 0.0])
    chances = reduced.probability(drafter, torch.tensor([4, 2]))
    assert chances.tolist() == pytest.approx([float(drafter.softmax(-1)[0, 2]), 0.0])


def test_tokens_in_any_order() -> None:
    """As published heads may have them, the most frequent first."""
    ids, logits = torch.tensor([13, 5, 9]), torch.tensor([[1.0, 2.0, 4.0]])
    covered = torch.zeros(14, dtype=torch.bool).index_fill(0, ids, True)
    reduced = ReducedObjective({"nll": 1.0}, ids=ids, covered=covered)
    for column, token in enumerate(ids.tolist()):
        wanted = torch.nn.functional.cross_entropy(logits, torch.tensor([column]))
        assert float(reduced(logits, None, torch.tensor([token]))) == pytest.approx(float(wanted))
