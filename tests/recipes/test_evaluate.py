"""The acceptance that is counted without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch


def test_chain_counts_tokens_and_passes() -> None:
    """A pass takes the agreeing run, at most gamma, and one token more."""
    import evaluate

    assert evaluate.chain([True] * 10, gamma=4) == (10, 2)
    assert evaluate.chain([False] * 3, gamma=4) == (3, 3)
    assert evaluate.chain([True, False, True, True, False], gamma=4) == (5, 2)


def test_answers_that_loop_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths are given with and without them: here the drafter foresees the loop alone."""
    import evaluate

    answers = {0: [7] * 12, 1: list(range(12))}
    written = [(i, answer, None, None) for i, answer in answers.items()]
    monkeypatch.setattr(evaluate, "in_batches", lambda *_: written)
    draft = SimpleNamespace(logits=lambda ids: torch.eye(20)[torch.full_like(ids, 7)])
    found = evaluate.acceptance(None, draft, [[1], [1]])
    assert (found["looping"], found["tokens"]) == (1, 24)
    assert found["without_loops"] == 12 / 11  # 7 is one of twelve tokens
    assert found["mean_acceptance_length"] == 24 / (3 + 11)
