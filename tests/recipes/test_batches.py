"""Packed training batches."""

from __future__ import annotations

import pytest
import torch

from recipe_data import packed


def test_batches_are_full_and_weighted() -> None:
    """Rows without padding, weights that sum to one, tasks in about their shares."""
    import batches

    sources = {"a": packed("qa", [20] * 50, 0), "b": packed("lm", [300] * 3, 1)}
    sampler = batches.Sampler(sources, {"qa": 0.7, "lm": 0.3}, 128, seed=0)
    share = []
    for _ in range(30):
        ids, goal, weight = sampler.batch(4)
        assert ids.shape == goal.shape == weight.shape == (4, 128)
        assert torch.equal(ids[:, 1:], goal[:, :-1])
        assert float(weight.sum()) == pytest.approx(1.0, abs=1e-5) and bool((weight > 0).all())
        share.append(float((ids == 1).sum()) * 20 / ids.numel())
    assert 0.5 < sum(share) / len(share) < 0.9  # about the 0.7 asked for


def test_long_records_keep_both_ends() -> None:
    """A record that is too long keeps its beginning and its end."""
    import batches

    source = packed("rag", [500], 0)
    piece = batches.Sampler({"a": source}, {"rag": 1.0}, 99, seed=0)._next("a")
    assert len(piece.tokens) == 100
    assert (
        piece.tokens[0] == 1 and piece.tokens[-1] == 0 and piece.weight[-1] == batches.ENDING_WEIGHT
    )
