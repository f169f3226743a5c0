"""Drafters that force a case."""

from __future__ import annotations

import pytest
import torch

from foretoken import SamplingParams
from foretoken.draws import KeyedDraws
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Drawn,
    Oracle,
    logits_after,
    reference_distribution,
    table_pair,
)
from foretoken.tree import Kind


@pytest.mark.parametrize("kind", [Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT])
def test_drawn_trees(kind: Kind) -> None:
    """Shape, rows and kinds are as asked for; without replacement siblings differ."""
    pair = table_pair(3)
    drafter = Drawn(pair.draft, (2, 3), kind)
    drafter.bind(pair.target)  # type: ignore[arg-type]
    for seed in range(20):
        sequence = Sequence.start([0, 1], SamplingParams(), seed=seed)
        draws = KeyedDraws([sequence.key], [2], torch.device("cpu"))
        tree = drafter.draft([sequence], [9], draws)
        assert tree.parent_slots.tolist() == [[0, 0, 1, 1, 1, 2, 2, 2]]
        assert tree.rows.tolist() == [[0, 0, 1, 1, 1, 2, 2, 2]]  # type: ignore[union-attr]
        assert tree.kind is kind and drafter.trees
        if kind is Kind.WITHOUT_REPLACEMENT:
            assert tree.tokens[0, 2:5].sort().values.tolist() == [0, 1, 2]
        for node, path in enumerate(tree.contexts()[0][1:]):
            logits = logits_after(pair.draft, [0, 1, *path[:-1]])
            distribution = reference_distribution(logits, [0, 1], 2, SamplingParams())
            torch.testing.assert_close(tree.proposals[0, tree.rows[0, node]].tolist(), distribution)  # type: ignore[index]


def test_an_oracle_is_wrong_where_it_is_told_to_be() -> None:
    """At each place in turn, and nowhere; within its budget, unless that is to be ignored."""
    text = [5, 6, 7, 8]
    oracle = Oracle({(1, 2): text}, num_speculative_tokens=3, wrong_at=1, cycle=True)
    oracle.bind(table_pair(9).target)  # type: ignore[arg-type]
    sequence = Sequence.start([1, 2], SamplingParams())
    drafts = [oracle._next(sequence, 9) for _ in range(5)]
    assert drafts == [[5, 7, 7], [5, 6, 8], [5, 6, 7], [6, 6, 7], [5, 7, 7]]
    oracle.wrong_at = None
    assert oracle._next(sequence, 2) == text[:2]
    oracle.ignore_budget = True
    assert oracle._next(sequence, 2) == text[:3]
