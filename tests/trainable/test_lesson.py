"""Estimates of what serving would accept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken.trainable.lesson import (
    Estimate,
    Lesson,
    chain_acceptance,
    drawn_acceptance,
    estimate,
    numbers_at_once,
)


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
    both = estimate(max_nodes.expand(2, -1), torch.cat((0 * reached, reached)))
    assert (both.tokens, both.steps) == (12, pytest.approx(6 + 3.5))
    assert both.accepted == pytest.approx([1.5, 1.0])


def test_estimates_of_shorter_and_longer_drafts() -> None:
    """Places that one of them doesn't have are accepted in none of its steps."""
    total = Estimate(4.0, 2.0, [1.0])
    for more in (Estimate(6.0, 3.0, [2.0, 1.0]), Estimate()):
        total.add(more)
    assert total == Estimate(10.0, 5.0, [3.0, 1.0]) and total.rates == [0.6, 0.2]
    assert Estimate().rates == [] and Estimate().acceptance_length == 0


def test_a_chain_ends_with_its_budget() -> None:
    """Of two nodes a third is none, whatever its chance."""
    found = drawn_acceptance(torch.full((1, 3, 3), 0.5), torch.tensor([[2, 0, -1]]))
    assert found.tolist() == [[[0.5, 0.25, 0.0], [0.0] * 3, [0.0] * 3]]


def test_a_chain_has_the_chances_of_the_places_after_it() -> None:
    found = chain_acceptance(torch.tensor([[0.5, 0.2, 0.1]]), torch.tensor([[2, 1, -1]]), 2)
    torch.testing.assert_close(found, torch.tensor([[[0.5, 0.1], [0.2, 0.0], [0.0, 0.0]]]))


def test_places_from_which_there_is_something_to_learn() -> None:
    """Two or three places before a token that counts; a row with fewer is filled."""
    none: Any = torch.zeros(2, 6)
    weight = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    lesson = Lesson(none, none, none, weight, *[none] * 6)
    first, second = lesson.places_to_draft(2).tolist()
    assert first == [0, 1, 2] and second[:2] == [2, 3] and len(second) == 3


def test_a_gpu_computes_more_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a 64th of its memory holds, and never less than a CPU does."""
    memory = SimpleNamespace(total_memory=2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert numbers_at_once(cpu, 7) == 7
    assert numbers_at_once(gpu, 7) == 2**30 // 64 // 4 == 2**22
    assert numbers_at_once(gpu, 2**23) == 2**23

    def places(device: torch.device, few: int, logits: int) -> int:
        lesson: Any = SimpleNamespace(
            tokens=SimpleNamespace(device=device),
            _vocab_size=1024,
        )
        return Lesson.places_at_once(lesson, few, logits)

    assert places(cpu, 128, 2) == 128
    assert places(gpu, 128, 2) == 2**22 // 2 // 1024 == 2048
    assert places(gpu, 128, 64) == 128

    def head(states: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*states.shape[:-1], 11)

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, 4)

    nothing: Any = torch.zeros(2, 5)
    lesson = Lesson(*[nothing] * 5, {}, head, embed, nothing, nothing)
    assert lesson._vocab_size == 11
