"""A module around one decoder layer: ranks follow from its outputs."""

from __future__ import annotations

import torch

from foretoken.testing import Pair
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.eagle import EagleModule
from lessons import packed, seeded


def test_ranks_are_those_of_the_text(small: Pair, records: Records) -> None:
    """Of the token i + 1 after a root, in the logits of step i from the place before the root."""
    module, frozen = seeded(EagleModule, small), FrozenTarget(small.target)
    lesson = frozen.lesson(packed(records), (-1,))
    with torch.no_grad():
        ranks, outputs = module.ranks(lesson, 2), module.outputs(lesson, 2)
    roots = ((lesson.max_nodes[0] >= 2) & (lesson.positions[0] > 0)).nonzero()[:, 0].tolist()
    assert roots
    for root in roots:
        for i in range(2):
            logits = frozen.head(outputs[0, root - 1, i])
            goal = lesson.tokens[0, root + 1 + i]
            assert ranks[0, root, i] == (logits > logits[goal]).sum()
