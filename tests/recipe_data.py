"""A small random model and packed records, for the tests of `recipes/zoo`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch


def random_llama(seed: int = 0) -> Any:
    """A `model.Llama` of two layers in which every weight counts."""
    import model

    torch.manual_seed(seed)
    config = model.Config(64, 2, heads=2, kv_heads=1, intermediate=96, vocab=256, head_dim=32)
    net = model.Llama(config)
    for name, p in net.named_parameters():
        p.data = torch.randn_like(p) * (p.shape[-1] ** -0.5) if p.dim() > 1 else p + 0.3
        assert "proj" not in name or p.abs().sum() > 0
    return net


def packed(task: str, lengths: list[int], seed: int) -> Any:
    """A `corpus.Packed` with records of these lengths, the last three tokens of each an answer."""
    import corpus

    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(5, 100, starts[-1]).astype(np.uint16)
    answer = np.zeros(starts[-1], np.uint8)
    for lo, hi in pairwise(starts):
        tokens[lo], tokens[hi - 1], answer[hi - 3 : hi] = 1, 0, 1
    return corpus.Packed(task, tokens, answer, starts)
