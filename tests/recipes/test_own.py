"""The target's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_data import packed, random_llama


def test_own_answers_come_with_their_likeliest_tokens(tmp_path: Path) -> None:
    """Answers are written with the likeliest tokens of each place; a prompt's has itself."""
    import evaluate
    import own
    import tokenizer

    data = {task: packed(task, [20] * 9, i) for i, task in enumerate(sorted(evaluate.SIX))}
    for source in data.values():
        source.tokens[source.starts[:-1] + 6] = tokenizer.ASSISTANT_ID
    own.write(random_llama(), data, 12).save(tmp_path / "own.npz")
    found = own.Own.load(tmp_path / "own.npz")
    assert len(found.starts) == 13 and found.starts[-1] == len(found.tokens)
    ids, best, chance, weight = own.OwnSampler(found, 64, seed=0).batch(3)
    assert ids.shape == weight.shape == (3, 64) and best.shape == chance.shape == (3, 64, 16)
    assert float(weight.sum()) == pytest.approx(1.0, abs=1e-4)
    asked = weight[0] < weight[0].max() / 2  # a prompt's places hold their own token alone
    assert bool((chance[0, asked][:, 0] == 1).all())
    assert torch.equal(best[0, :-1, 0][asked[:-1]], ids[0, 1:][asked[:-1]])


def test_answers_that_are_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are not there: distill.py takes the file for whole."""
    import numpy as np
    import own

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(KeyboardInterrupt):
        own.Own(*[np.zeros(1)] * 5).save(tmp_path / "own.npz")
    assert not (tmp_path / "own.npz").exists()
