"""Joined trees: pieces of a batch, several trees under one root."""

from __future__ import annotations

from typing import Any

import torch

from foretoken import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Drawn,
    table_pair,
)
from foretoken.tree import DraftTree, Kind, chains, empty
from foretoken.trees.from_lists import from_paths
from foretoken.trees.join import assemble, join

CPU = torch.device("cpu")


def rows_of(tree: DraftTree) -> list[list[tuple[tuple[int, ...], int, Any]]]:
    """Of each row its nodes: path, kind, and the distribution that it came from."""
    found = []
    for b, paths in enumerate(tree.contexts()):
        row = []
        for node in range(tree.counts[b]):
            kind = int(tree.kind if tree.kinds is None else tree.kinds[b, node])
            distribution = None
            if tree.proposals is not None and kind not in (Kind.CHOSEN, Kind.PADDING):
                place = node if tree.rows is None else int(tree.rows[b, node])
                distribution = tree.proposals[b, place].tolist()
            row.append((tuple(paths[node + 1]), kind, distribution))
        found.append(row)
    return found


def some_trees() -> list[DraftTree]:
    """A copied chain, a drawn chain, drawn trees of both kinds, chosen branches, nothing."""
    pair = table_pair(5)
    sequences = [Sequence.start([0, 1, i], SamplingParams(), seed=i) for i in range(2)]
    from foretoken.sampling.sequence import draws_for

    made = [chains([[1, 2, 3], [4]], CPU)]
    for shape, kind in (
        ((1, 1), Kind.INDEPENDENT),
        ((2, 1), Kind.WITHOUT_REPLACEMENT),
        ((3,), Kind.INDEPENDENT),
    ):
        drafter = Drawn(pair.draft, shape, kind)
        drafter.bind(ModelAccess())  # type: ignore[arg-type]
        made.append(drafter.draft(sequences, [9, 9], draws_for(sequences, CPU)))
    return [*made, from_paths([[[2], [1, 2, 4]], [[3]]], CPU), empty(2, CPU)]


class ModelAccess:
    device = CPU


def test_pieces_of_a_batch() -> None:
    """Each row has the nodes, kinds and distributions of its piece, whatever stands in the
    others."""
    trees = some_trees()
    for one in trees:
        for other in trees:
            whole = assemble([([2, 0], one), ([3, 1], other.take([1, 0]))], 5, CPU)
            a, b = rows_of(one), rows_of(other)
            assert rows_of(whole) == [a[1], b[0], a[0], b[1], []]
    assert assemble([([0, 1], trees[1])], 2, CPU) is trees[1]
    assert assemble([], 3, CPU).counts == [0, 0, 0]


def test_trees_side_by_side() -> None:
    """All nodes of both with their kinds and distributions; of chosen trees no path twice."""
    trees = some_trees()
    for one in trees:
        for other in trees:
            if not other.nodes or other.kind == Kind.WITHOUT_REPLACEMENT:
                continue
            whole = join([one, other])
            a, b = rows_of(one), rows_of(other)
            if one.kind == other.kind == Kind.CHOSEN:
                paths = [{path for path, _, _ in row} for row in rows_of(whole)]
                assert paths == [{n[0] for n in x + y} for x, y in zip(a, b, strict=True)]
                assert [len(p) for p in paths] == whole.counts
            else:
                assert rows_of(whole) == [x + y for x, y in zip(a, b, strict=True)]
                assert bool((whole.parent_slots <= torch.arange(whole.nodes)).all())
                assert int((whole.depths[:, 1:] * ~whole.counted).max()) <= 1  # none of padding's


def test_numbers_of_extra_tokens_in_a_batch_of_pieces() -> None:
    """Nodes of the other pieces have none."""
    kinds = torch.tensor([[Kind.CHOSEN, Kind.AUXILIARY]]).to(torch.int8)
    extras = torch.tensor([[0, 4]])
    numbered = DraftTree(torch.tensor([[7, 0]]), [2], kinds=kinds, extras=extras)
    whole = assemble([([1], numbered), ([0], chains([[5, 6, 8]], CPU))], 3, CPU)
    assert whole.extras is not None
    assert whole.extras.tolist() == [[0, 0, 0], [0, 4, 0], [0, 0, 0]]
