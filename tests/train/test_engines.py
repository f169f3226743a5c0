"""The engines that write and measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import LLM
from foretoken.train import engines
from foretoken.train.engines import beside, cache_bytes, sequences


def test_as_many_as_fit() -> None:
    """One at least, and no more than are wanted."""
    assert sequences(10, 64, None) == 64
    assert sequences(10, 64, 10_000) == 64
    assert sequences(10, 64, 400) == 20
    assert sequences(10, 64, 1) == 1


def test_caches_are_the_texts(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as asked for, or as the model's context; as many as the free memory has room for."""
    llm = LLM(checkpoints[0])
    size = cache_bytes(llm.model, 40)
    cell = 2 * llm.model.layers * llm.model.kv_heads * llm.model.head_dim
    assert size == 40 * cell * llm.model.dtype.itemsize
    made = beside(llm, llm.model, 40, 8)
    assert made.engine.target.max_length == 40 and made.engine.eos_ids == llm.engine.eos_ids
    assert len(made.engine.target.cache.lengths) == 8
    monkeypatch.setattr(engines, "_free", lambda device: 6 * size)
    assert len(beside(llm, llm.model, 40, 8).engine.target.cache.lengths) == 3
    long = beside(llm, llm.model, 10**9, 1)
    assert long.engine.target.max_length == llm.model.max_length
