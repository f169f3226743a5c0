"""Estimates of what serving would accept."""

from __future__ import annotations

import pytest
import torch

from foretoken.trainable.lesson import Estimate, estimate


def test_a_walk_by_hand() -> None:
    """Each step starts where the one before it ended; chances spread over the next roots."""
    max_nodes = torch.tensor([[-1, 9, 9, 9, 9, 9, -1, 9, -1]])
    reached = torch.zeros(1, 9, 2)
    reached[0, 1] = torch.tensor([1.0, 1.0])  # 1 -> 4
    reached[0, 4] = torch.tensor([0.5, 0.0])  # 4 -> 5 or 6, where the text is at its end
    found = estimate(max_nodes, reached)
    assert found.tokens == 6 and found.steps == pytest.approx(1 + 1 + 0.5 + 1)
    assert found.accepted == pytest.approx([1.5, 1.0])
    total = Estimate()
    total.add(found)
    total.add(found)
    assert total.acceptance_length == pytest.approx(6 / 3.5)
