"""Contrastive decoding the slow, obvious way, to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from foretoken import SamplingParams
from foretoken.models.contrastive import Contrastive
from foretoken.testing import Pair, logits_after, reference_distribution

ALPHA, BETA = 0.3, 0.7
PROMPTS = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3], [11, 11, 11]]


def spelled_out(models: Pair, tokens: Seq[int], alpha: float, beta: float) -> Tensor:
    """The logits [V] after `tokens`, token by token and from scratch."""
    expert = logits_after(models.target, tokens).softmax(-1).tolist()
    amateur = logits_after(models.draft, tokens).softmax(-1).tolist()
    scores = [-math.inf] * len(expert)
    for token, (good, bad) in enumerate(zip(expert, amateur, strict=True)):
        if good >= alpha * max(expert):
            scores[token] = (1 + beta) * math.log(good) - beta * math.log(bad)
    return torch.tensor(scores, dtype=torch.float64)


def contrastive(models: Pair, alpha: float = ALPHA, beta: float = BETA) -> Pair:
    """The pair's target less its draft model, which still is the one to draft."""
    return Pair(Contrastive(models.target, models.draft, alpha=alpha, beta=beta), models.draft)


def slow_distribution(
    models: Pair, prompt: list[int], params: SamplingParams, tokens: int
) -> dict[Any, float]:
    """The joint distribution of `tokens` tokens of contrastive decoding, the slow obvious way."""
    distribution: dict[Any, float] = {(): 1.0}
    for _ in range(tokens):
        longer = {}
        for text, chance in distribution.items():
            context = [*prompt, *text]
            logits = spelled_out(models, context, ALPHA, BETA)
            for token, p in enumerate(reference_distribution(logits, context, len(prompt), params)):
                if p > 0:
                    longer[(*text, token)] = chance * p
        distribution = longer
    return distribution


def slow_text(models: Pair, prompt: list[int], tokens: int) -> list[int]:
    """Greedy contrastive decoding with both models from scratch at every token."""
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(spelled_out(models, text, ALPHA, BETA).argmax()))
    return text[len(prompt) :]
