"""Attention along packed rows, text by text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken.models.hf.cache import windows
from foretoken.trainable import masked_attention, packed_attention
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.packed_attention import text_lengths
from foretoken.trainable.small_lm import TrainedLM
from lessons import random_lesson
from stored_models import written


def test_the_texts_of_rows() -> None:
    """Padding is one more."""
    records = torch.tensor([[0, 0, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0], [0, 1, 1, -1, -1, -1]])
    assert text_lengths(records) == [[2, 1, 3], [6], [1, 2, 3]]


def by_masks(drafter: TrainedLM, lesson: Lesson) -> Tensor:
    """[B, T, D] the same states by transformers' own attention, and masks [B, 1, T, T]."""
    positions, masks = lesson.positions, {}
    apart = positions[:, :, None] - positions[:, None]
    for kind, window in windows(drafter.lm.config).items():
        near = apart < window if window else torch.ones_like(apart, dtype=torch.bool)
        seen = (lesson.mask(slice(None)) & near)[:, None]
        masks[kind] = torch.zeros_like(seen, dtype=torch.float32).masked_fill_(~seen, -torch.inf)
    given: Any = masks if len(masks) > 1 else next(iter(masks.values()))
    states: Tensor = drafter.lm.base_model(
        input_ids=lesson.tokens, attention_mask=given, position_ids=positions, use_cache=False
    ).last_hidden_state
    return states


@pytest.mark.parametrize("numbers", [3 * 20, 10**6, None])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma2", "gemma3_text"])
def test_states_are_those_of_masks(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    family: str,
    numbers: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And so are their gradients: with windows, the soft cap of scores and padding, some places at
    a time or, as on a GPU, all by one mask; the model's own attention is what it was afterwards."""
    if numbers is None:
        monkeypatch.setattr(packed_attention, "numbers_at_once", lambda device, few: 2**20)
    else:
        monkeypatch.setattr(masked_attention, "_NUMBERS", numbers)
        monkeypatch.setattr(masked_attention, "_QUERIES", 1)
    lesson = random_lesson(checkpoints[0], 0.0)
    records = lesson.records.clone()
    records[1, 25:] = -1
    lesson = replace(lesson, records=records)
    given: dict[str, Any] = {}
    if family in ("mistral", "gemma2", "gemma3_text"):
        given["sliding_window"] = 4
    if family.startswith("gemma"):
        given["layer_types"] = ["sliding_attention", "full_attention"]
    if family == "gemma2":
        given["attn_logit_softcapping"] = 0.5
    drafter = TrainedLM(Facts(0, 97, 0), model=str(written(tmp_path, family, **given)))
    before, found = drafter.lm.config._attn_implementation, []
    for states in (drafter.states(lesson), by_masks(drafter, lesson)):
        drafter.zero_grad()
        kept = states[records >= 0]
        kept.square().sum().backward()
        found.append(
            [kept.detach(), *(p.grad.clone() for p in drafter.parameters() if p.grad is not None)]
        )
    assert len(found[0]) == len(found[1]) > 8
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
    assert drafter.lm.config._attn_implementation == before


def test_nothing_is_for_all_pairs_of_places(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training has no mask, whose memory grows with the square of a row's length."""
    lesson = random_lesson(checkpoints[0], 0.0)
    drafter = TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1]))
    monkeypatch.setattr(Lesson, "mask", None)
    assert drafter.states(lesson).shape == (2, 40, drafter.lm.config.hidden_size)
