"""Lessons hold what serving the same text computes."""

from __future__ import annotations

import torch

from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from lessons import GREEDY, written


def test_lessons_hold_the_targets_cache(pair: Pair) -> None:
    """Keys and values of a packed record are those that serving it puts into the cache."""
    records = written(pair.target)
    lesson = FrozenTarget(pair.target).lesson(collate(records, [[0, 1]], 40, 0.0), (-1,))
    text = records.prompt(1) + records.answer(1)
    start = int((lesson.records[0] == 1).nonzero()[0])
    count = min(len(text), 40 - start)
    target = ModelTarget(pair.target, 1, 64)
    sequence = Sequence.start([*text[:count], 0], GREEDY)
    target.begin(sequence)
    target.prefill([sequence], 64)
    for layer in (0, 1):
        for mine, theirs in zip(lesson.kv(layer), target.kv(sequence, layer), strict=True):
            torch.testing.assert_close(mine[0, :, start : start + count], theirs)
