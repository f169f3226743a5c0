"""Trained prompt tokens."""

from __future__ import annotations

import torch

from foretoken.drafters.lookahead_embeddings import PassTokens
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.losses import Objective
from lessons import seeded


def test_prompt_tokens_learn(small: Pair, records: Records) -> None:
    """They begin as the text's mean embedding, and the loss falls."""
    module, frozen = seeded(PassTokens, small, blocks=16).train(), FrozenTarget(small.target)
    counts = records.counts(23)
    module.set_token_counts(counts)
    module.copy_from(frozen)
    mean = (counts[:, None] * frozen.embed(torch.arange(23))).sum(0) / counts.sum()
    torch.testing.assert_close(module.embeddings[1], mean, check_dtype=False)
    lesson = frozen.lesson(collate(records, [[0, 1, 2], [3, 4, 5]], 80, 0.0), (-1,))
    optimizer, seen = torch.optim.Adam(module.parameters(), 0.05), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = module(lesson, Objective({"kl_div": 1.0}))
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])
