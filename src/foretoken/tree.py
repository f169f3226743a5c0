"""Draft trees as data: tokens, parents, and where each token came from.

A pass of the target scores the root (the last emitted token) and N draft nodes. Slot 0 of a pass
is the root and slot i + 1 is node i, so `parents` holds slots: 0 for a child of the root. A
parent always stands before its children. Mask, depths and paths are derived here and nowhere else.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, R proposal rows, D deepest path.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import torch
from torch import Tensor


class Kind(IntEnum):
    """How a node's token was obtained, which decides the rules that are exact for it."""

    PADDING = -1  # fills a shorter tree of the batch; never accepted
    CHOSEN = 0  # a point mass: the drafter proposes this token and no other
    INDEPENDENT = 1  # drawn from its proposal row; siblings may repeat
    WITHOUT_REPLACEMENT = 2  # drawn from its row after removing the earlier siblings
    AUXILIARY = 3  # scored and handed back to `observe`, never accepted


@lru_cache(maxsize=256)
def _chain_ancestors(slots: int, device: torch.device) -> Tensor:
    return torch.ones(slots, slots, dtype=torch.bool, device=device).tril()


@dataclass
class DraftTree:
    """One token tree for each sequence of a batch.

    Attributes:
        tokens: [B, N] int64.
        counts: nodes of each sequence; nodes at and after it are padding.
        parents: [B, N] int64 slots (0 = root), or None where every tree is a chain.
        kinds: [B, N] int8 of `Kind`, or None where every node is `kind`.
        kind: the kind of all nodes where `kinds` is None.
        proposals: [B, R, V] the distributions that drawn nodes came from, or None.
        rows: [B, N] int64 row of `proposals` of each node; None where it is the node's own index.
        extras: [B, N] int64: of an auxiliary node that stands for an extra token of the drafter's
            that token's number (see `Access.extra_tokens`), else 0; None where there are none.
    """

    tokens: Tensor
    counts: list[int]
    parents: Tensor | None = None
    kinds: Tensor | None = None
    kind: Kind = Kind.CHOSEN
    proposals: Tensor | None = None
    rows: Tensor | None = None
    extras: Tensor | None = None

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def nodes(self) -> int:
        """N, padding included."""
        return self.tokens.shape[1]

    @property
    def is_chain(self) -> bool:
        return self.parents is None

    @cached_property
    def parent_slots(self) -> Tensor:
        """[B, N] the slot of each node's parent."""
        if self.parents is not None:
            return self.parents
        return torch.arange(self.nodes, device=self.tokens.device).expand(self.batch, -1)

    @cached_property
    def valid(self) -> Tensor:
        """[B, N] bool: nodes that may be accepted (neither padding nor auxiliary)."""
        counted = _counted(self)
        if self.kinds is None:
            return counted & (self.kind != Kind.AUXILIARY)
        return counted & (self.kinds >= 0) & (self.kinds != Kind.AUXILIARY)

    @cached_property
    def offered(self) -> list[tuple[int, int]]:
        """Of each sequence, how many nodes may be accepted and the deepest one's depth.

        Costs one transfer to the host where that isn't known there.
        """
        if self.nodes == 0:
            return [(0, 0)] * self.batch
        if self.kinds is None and self.kind != Kind.AUXILIARY and self.is_chain:
            return [(count, count) for count in self.counts]
        depths = self.depths[:, 1:] * self.valid
        pairs = torch.stack((self.valid.sum(1), depths.amax(1)), 1).tolist()
        return [(nodes, depth) for nodes, depth in pairs]

    @cached_property
    def ancestors(self) -> Tensor:
        """[B, S, S] bool: slot i sees slot j (itself and every node above it)."""
        slots = self.nodes + 1
        if self.parents is None:
            return _chain_ancestors(slots, self.tokens.device).expand(self.batch, -1, -1)
        seen = torch.eye(slots, dtype=torch.bool, device=self.tokens.device).repeat(
            self.batch, 1, 1
        )
        rows = torch.arange(self.batch, device=self.tokens.device)
        for node in range(self.nodes):
            seen[:, node + 1] |= seen[rows, self.parents[:, node]]
        return seen

    @cached_property
    def depths(self) -> Tensor:
        """[B, S] int64: 0 at the root, the position offset of each slot."""
        if self.parents is None:
            return torch.arange(self.nodes + 1, device=self.tokens.device).expand(self.batch, -1)
        return self.ancestors.sum(-1) - 1

    @cached_property
    def ranks(self) -> Tensor:
        """[B, N] how many valid siblings stand before each node."""
        parents = self.parent_slots
        siblings = (parents[:, :, None] == parents[:, None, :]) & self.valid[:, None, :]
        return siblings.tril(-1).sum(-1)

    @cached_property
    def widths(self) -> list[int]:
        """The most valid siblings at each depth from 1 on, over the batch: what a rule loops over.

        Costs one transfer to the host for a tree that isn't a chain.
        """
        if self.parents is None:
            return [1] * self.nodes
        counts = torch.where(self.valid, self.ranks + 1, 0)
        most = counts.new_zeros(self.nodes + 1)
        most.scatter_reduce_(0, self.depths[:, 1:].flatten(), counts.flatten(), "amax")
        widths: list[int] = most[1:].tolist()
        return widths[: next((d for d, width in enumerate(widths) if not width), len(widths))]

    @cached_property
    def children(self) -> Tensor:
        """[B, S, K] slots of each slot's valid children in draw order, 0 where there are fewer."""
        most = max(self.widths, default=0)
        table = self.tokens.new_zeros(self.batch, self.nodes + 1, most + 1)
        rows = torch.arange(self.batch, device=table.device)[:, None]
        ranks = torch.where(self.valid, self.ranks, most)  # the last column is for the others
        slots = torch.arange(1, self.nodes + 1, device=table.device).expand(self.batch, -1)
        table[rows, self.parent_slots, ranks] = slots
        return table[:, :, :most]

    def contexts(self) -> list[list[list[int]]]:
        """Host lists [batch][slot] of the draft tokens on the path to each slot, inclusive."""
        tokens, parents = self.tokens.tolist(), self.parent_slots.tolist()
        paths: list[list[list[int]]] = []
        for row, above in zip(tokens, parents, strict=True):
            mine: list[list[int]] = [[]]
            for token, parent in zip(row, above, strict=True):
                mine.append([*mine[parent], token])
            paths.append(mine)
        return paths

    def take(self, rows: Seq[int]) -> DraftTree:
        """The trees of some of the sequences."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.tokens.device)

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[index]

        return DraftTree(
            self.tokens[index],
            [self.counts[row] for row in rows],
            pick(self.parents),
            pick(self.kinds),
            self.kind,
            pick(self.proposals),
            pick(self.rows),
            pick(self.extras),
        )

    def trim(self, budgets: Seq[int]) -> DraftTree:
        """The same trees with at most `budgets[b]` nodes each, the last drawn left out first, and
        no wider than the widest of them.

        Node order is draw order and parents stand before children, so a prefix is again a tree.
        """
        counts = [
            max(0, min(count, budget)) for count, budget in zip(self.counts, budgets, strict=True)
        ]
        width = max(counts, default=0)
        if counts == self.counts and width == self.nodes:
            return self

        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, :width]

        return DraftTree(
            self.tokens[:, :width],
            counts,
            cut(self.parents),
            cut(self.kinds),
            self.kind,
            self.proposals,
            cut(self.rows),
            cut(self.extras),
        )


@lru_cache(maxsize=256)
def empty(batch: int, device: torch.device) -> DraftTree:
    """Nothing drafted: the step becomes a plain decoding step.

    One tree for all such steps, so that what is derived from it is there already.
    """
    return DraftTree(torch.zeros(batch, 0, dtype=torch.int64, device=device), [0] * batch)


def chains(drafts: Seq[Seq[int]], device: torch.device) -> DraftTree:
    """Chosen chains from host lists, one for each sequence; a list may be empty."""
    counts = [len(draft) for draft in drafts]
    width = max(counts, default=0)
    if width == 0:
        return empty(len(drafts), device)
    padded = [[*draft, *([0] * (width - len(draft)))] for draft in drafts]
    return DraftTree(torch.tensor(padded, device=device), counts)


def from_paths(paths: Seq[Seq[Seq[int]]], device: torch.device) -> DraftTree:
    """Chosen trees: for each sequence a list of token paths, merged where they share a prefix."""
    tokens: list[list[int]] = []
    parents: list[list[int]] = []
    for branches in paths:
        slots: dict[tuple[int, ...], int] = {(): 0}
        row: list[int] = []
        above: list[int] = []
        for branch in branches:
            for end in range(1, len(branch) + 1):
                key = tuple(branch[:end])
                if key not in slots:
                    above.append(slots[key[:-1]])
                    row.append(key[-1])
                    slots[key] = len(row)
        tokens.append(row)
        parents.append(above)
    return from_parents(tokens, parents, device)


def from_parents(tokens: Seq[Seq[int]], parents: Seq[Seq[int]], device: torch.device) -> DraftTree:
    """Chosen trees from host lists: each sequence's tokens and the slots of their parents."""
    if all(slot == i for above in parents for i, slot in enumerate(above)):
        return chains(tokens, device)
    counts = [len(row) for row in tokens]
    width = max(counts)

    def padded(rows: Seq[Seq[int]]) -> Tensor:
        return torch.tensor([[*row, *([0] * (width - len(row)))] for row in rows], device=device)

    return DraftTree(padded(tokens), counts, parents=padded(parents))


def placed(pieces: Seq[tuple[Seq[int], DraftTree]], batch: int, device: torch.device) -> DraftTree:
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
    given = [(rows, piece) for rows, piece in pieces if piece is not None]
    some = given[0][1]
    most = max(piece.shape[1] for _, piece in given)
    full = some.new_zeros(batch, most, *some.shape[2:])
    for rows, piece in given:
        full[torch.tensor(list(rows), device=some.device), : piece.shape[1]] = piece
    return full


def beside(trees: Seq[DraftTree]) -> DraftTree:
    """Trees of one batch under one root: merged where all are chosen, else one after the other.

    A tree drawn without replacement must be the first, and the only one of its kind: such a draw is
    taken to have left out every sibling that stands before it.
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
    counts = [sum(each) for each in zip(*(tree.counts for tree in trees), strict=True)]
    # Where a row's tree is shorter than the longest, the next one's nodes move up to it.
    order = (~torch.cat([_counted(tree) for tree in trees], 1)).byte().argsort(dim=1, stable=True)
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
    whole.parents = whole.parent_slots * _counted(whole)  # padding has no depth
    return whole


def _merged(trees: Seq[DraftTree]) -> DraftTree:
    """Chosen trees as one in which no path stands twice, the first one's nodes first."""
    paths: list[list[list[int]]] = [[] for _ in trees[0].counts]
    for tree in trees:
        for mine, row, count in zip(paths, tree.contexts(), tree.counts, strict=True):
            mine += row[1 : count + 1]
    return from_paths(paths, trees[0].tokens.device)


def _counted(tree: DraftTree) -> Tensor:
    """[B, N] bool: nodes before each row's count."""
    counts = torch.tensor(tree.counts, device=tree.tokens.device)
    return torch.arange(tree.nodes, device=tree.tokens.device) < counts[:, None]


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
