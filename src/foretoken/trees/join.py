"""Trees put together: a batch's rows from pieces, and several drafters' trees under one root.

Legend: B sequences, N tree nodes, R proposal rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.tree import DraftTree, Kind, empty
from foretoken.trees.from_lists import from_paths


def assemble(
    pieces: Seq[tuple[Seq[int], DraftTree]], batch: int, device: torch.device
) -> DraftTree:
    """A batch's trees from pieces, each of which holds those of the rows it names, in order.

    Rows that no piece names draft nothing.
    """
    pieces = [(rows, tree) for rows, tree in pieces if tree.nodes]
    if not pieces:
        return empty(batch, device)
    if len(pieces) == 1 and list(pieces[0][0]) == list(range(batch)):
        return pieces[0][1]
    counts = [0] * batch
    for rows, tree in pieces:
        for row, count in zip(rows, tree.counts, strict=True):
            counts[row] = count
    trees = [tree for _, tree in pieces]

    def spread(part: Callable[[DraftTree], Tensor | None]) -> Tensor:
        return _spread([(rows, part(tree)) for rows, tree in pieces], batch)

    alike = len({tree.kind for tree in trees}) == 1 and all(tree.kinds is None for tree in trees)
    chain = all(tree.is_chain for tree in trees)
    drawn = any(tree.proposals is not None for tree in trees)
    own_rows = all(tree.rows is None and tree.proposals is not None for tree in trees)
    return DraftTree(
        spread(lambda tree: tree.tokens),
        counts,
        parents=None if chain else spread(lambda tree: tree.parent_slots),
        kinds=None if alike else spread(_kinds),
        kind=trees[0].kind,
        proposals=spread(lambda tree: tree.proposals) if drawn else None,
        rows=None if own_rows or not drawn else spread(_rows),
        extras=spread(_extras) if any(tree.extras is not None for tree in trees) else None,
    )


def _spread(pieces: Seq[tuple[Seq[int], Tensor | None]], batch: int) -> Tensor:
    """[batch, most, …] with each piece [n, M, …] at its rows, zeros elsewhere."""
    present = [(rows, piece) for rows, piece in pieces if piece is not None]
    first = present[0][1]
    most = max(piece.shape[1] for _, piece in present)
    full = first.new_zeros(batch, most, *first.shape[2:])
    for rows, piece in present:
        full[torch.tensor(list(rows), device=first.device), : piece.shape[1]] = piece
    return full


def join(trees: Seq[DraftTree]) -> DraftTree:
    """Trees of one batch under one root: merged where all are chosen, else one after the other.

    A tree drawn without replacement must be the first, and the only one of its kind: such a draw is
    taken to have left out every earlier sibling.
    """
    trees = [tree for tree in trees if tree.nodes] or list(trees[:1])
    if len(trees) == 1:
        return trees[0]
    if all(tree.kinds is None and tree.kind == Kind.CHOSEN for tree in trees):
        return _merged(trees)
    parents, rows, nodes, distributions = [], [], 0, 0
    for tree in trees:
        parents.append(tree.parent_slots + nodes * (tree.parent_slots > 0))
        nodes += tree.nodes
        rows.append(_rows(tree))
        if tree.proposals is not None:
            rows[-1] = rows[-1] + distributions
            distributions += tree.proposals.shape[1]
    counts = [sum(row) for row in zip(*(tree.counts for tree in trees), strict=True)]
    # Where a tree has fewer nodes than the widest, the nodes of the next tree move up.
    order = (~torch.cat([tree.counted for tree in trees], 1)).byte().argsort(dim=1, stable=True)
    moved = torch.cat((order.new_zeros(len(order), 1), order.argsort(1) + 1), 1)  # by old slot

    def sorted_(parts: Seq[Tensor]) -> Tensor:
        return torch.cat(list(parts), 1).gather(1, order[:, : max(counts)])

    drawn = [tree.proposals for tree in trees if tree.proposals is not None]
    extra = any(tree.extras is not None for tree in trees)
    whole = DraftTree(
        sorted_([tree.tokens for tree in trees]),
        counts,
        moved.gather(1, sorted_(parents)),
        kinds=sorted_([_kinds(tree) for tree in trees]),
        proposals=torch.cat(drawn, 1) if drawn else None,
        rows=sorted_(rows) if drawn else None,
        extras=sorted_([_extras(tree) for tree in trees]) if extra else None,
    )
    whole.parents = whole.parent_slots * whole.counted  # padding has no depth
    return whole


def _merged(trees: Seq[DraftTree]) -> DraftTree:
    """Chosen trees as one without repeated paths, the first one's nodes first."""
    paths: list[list[list[int]]] = [[] for _ in trees[0].counts]
    for tree in trees:
        for mine, row, count in zip(paths, tree.contexts(), tree.counts, strict=True):
            mine += row[1 : count + 1]
    return from_paths(paths, trees[0].tokens.device)


def _kinds(tree: DraftTree) -> Tensor:
    """[B, N] int8 the kind of each node."""
    if tree.kinds is not None:
        return tree.kinds
    return torch.full_like(tree.tokens, int(tree.kind), dtype=torch.int8)


def _rows(tree: DraftTree) -> Tensor:
    """[B, N] the proposal row of each node, 0 where there are no proposals."""
    if tree.rows is not None:
        return tree.rows
    if tree.proposals is None:
        return torch.zeros_like(tree.tokens)
    return torch.arange(tree.nodes, device=tree.tokens.device).expand(tree.batch, -1)


def _extras(tree: DraftTree) -> Tensor:
    """[B, N] the number of each node's extra token, 0 where it has none."""
    return torch.zeros_like(tree.tokens) if tree.extras is None else tree.extras
