"""Logits, a sequence and its distribution: what the tests of folding share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foretoken import SamplingParams
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence

VOCAB = 40
PATHS = [[], [3], [3, 5], [3, 3]]
"""Draft tokens before each place."""


def logits_of(seed: int = 0, rows: int = 1, vocab: int = VOCAB, scale: float = 2.0) -> Tensor:
    """[rows, places, vocab] random logits."""
    random = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, len(PATHS), vocab, generator=random, dtype=torch.float64)


def sequence(params: SamplingParams, output: list[int] | None = None, **options: Any) -> Sequence:
    one = Sequence.start([1, 2, 3], params, **options)
    one.tokens += output or []
    return one


def distribution(logits: Tensor, params: SamplingParams, output: list[int] | None = None) -> Tensor:
    return fold(logits, [sequence(params, output)], lambda: [PATHS]).probs[0]
