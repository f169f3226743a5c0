"""Draft trees as data: tokens, parents, and where each token came from.

A pass of the target scores the root (the last emitted token) and N draft nodes. Slot 0 of a pass
is the root and slot i + 1 is node i, so `parents` holds slots: 0 for a child of the root. A
parent always stands before its children. Mask, depths and paths are derived here only.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, R proposal rows, D deepest path.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST_NODES = 4096
"""The most nodes that a draft may be asked for: its mask is square."""


Cut = Callable[[Tensor], Tensor]


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


def _ancestors_on_host(parents: Tensor) -> Tensor:
    """[B, S, S] from parents [B, N]; numpy takes a microsecond for a node, torch ten."""
    batch, nodes = parents.shape
    seen = np.tile(np.eye(nodes + 1, dtype=np.bool_), (batch, 1, 1))
    rows, above = np.arange(batch), parents.numpy()
    for node in range(nodes):
        seen[:, node + 1] |= seen[rows, above[:, node]]
    return torch.from_numpy(seen)


class ResumePoint(NamedTuple):
    """States of chains after the target's first layers, from which a scoring pass can resume.

    layers: how many layers have run. tokens [B, K], states [B, K, D]: of the root and the first
    K - 1 nodes. changes: how often the target's cache had changed when they were computed; after
    another change they are invalid.
    """

    layers: int
    tokens: Tensor
    states: Tensor
    changes: int

    def cut(self, cut: Cut) -> ResumePoint:
        return self._replace(tokens=cut(self.tokens), states=cut(self.states))


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
        extras: [B, N] int64: for an auxiliary node that is one of the drafter's extra tokens, that
            token's number (see `Access.extra_tokens`), else 0; None where there are none.
        resume: the states of the target's first layers, where the drafter has computed them.
        amateur_logits: [B, S, V] raw, of the model that drafted, where the target asks for them
            (see `Access.amateur`).
    """

    tokens: Tensor
    counts: list[int]
    parents: Tensor | None = None
    kinds: Tensor | None = None
    kind: Kind = Kind.CHOSEN
    proposals: Tensor | None = None
    rows: Tensor | None = None
    extras: Tensor | None = None
    resume: ResumePoint | None = None
    amateur_logits: Tensor | None = None

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
    def counted(self) -> Tensor:
        """[B, N] bool: nodes that are not padding."""
        counts = torch.tensor(self.counts, device=self.tokens.device)
        return torch.arange(self.nodes, device=self.tokens.device) < counts[:, None]

    @cached_property
    def valid(self) -> Tensor:
        """[B, N] bool: nodes that may be accepted (neither padding nor auxiliary)."""
        counted = self.counted
        if self.kinds is None:
            return counted & (self.kind != Kind.AUXILIARY)
        return counted & (self.kinds >= 0) & (self.kinds != Kind.AUXILIARY)

    @cached_property
    def offered(self) -> list[tuple[int, int]]:
        """For each sequence: how many nodes may be accepted, and the depth of the deepest of them.

        Costs one transfer to the host, except for chosen or drawn chains.
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
        if self.tokens.device.type == "cpu":
            return _ancestors_on_host(self.parents)
        itself = torch.eye(slots, dtype=torch.bool, device=self.tokens.device)
        seen = itself.repeat(self.batch, 1, 1)
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
        """The most valid siblings at each depth from 1 on, over the batch: rules loop over them.

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
        """Host lists, by row and slot, of the draft tokens on the path to each slot, inclusive."""
        tokens, parents = self.tokens.tolist(), self.parent_slots.tolist()
        paths: list[list[list[int]]] = []
        for row_tokens, row_parents in zip(tokens, parents, strict=True):
            row_paths: list[list[int]] = [[]]
            for token, parent in zip(row_tokens, row_parents, strict=True):
                row_paths.append([*row_paths[parent], token])
            paths.append(row_paths)
        return paths

    def take(self, rows: Seq[int]) -> DraftTree:
        """The trees of the sequences in these rows."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.tokens.device)
        tree = self._cut([self.counts[row] for row in rows], lambda x: x[index], lambda x: x[index])
        tree.proposals = None if self.proposals is None else self.proposals[index]
        return tree

    def trim(self, budgets: Seq[int]) -> DraftTree:
        """The same trees with at most `budgets[b]` nodes each, where the last drawn are left out,
        padded to the largest of them.

        Node order is draw order and parents stand before children, so a prefix is again a tree.
        """
        pairs = zip(self.counts, budgets, strict=True)
        counts = [max(0, min(count, budget)) for count, budget in pairs]
        width = max(counts, default=0)
        if counts == self.counts and width == self.nodes:
            return self
        return self._cut(counts, lambda x: x[:, :width], lambda x: x[:, : width + 1])

    def _cut(self, counts: list[int], nodes: Cut, slots: Cut) -> DraftTree:
        """The tree with `nodes` applied to what it has for each node, `slots` for each slot."""
        cuts = dict.fromkeys(("tokens", "parents", "kinds", "rows", "extras"), nodes)
        cuts["amateur_logits"] = slots
        changed: dict[str, Any] = {
            name: cut(x) for name, cut in cuts.items() if (x := getattr(self, name)) is not None
        }
        resume = self.resume and self.resume.cut(slots)
        return replace(self, counts=counts, resume=resume, **changed)


@lru_cache(maxsize=256)
def empty(batch: int, device: torch.device) -> DraftTree:
    """Nothing drafted: the step becomes a plain decoding step.

    The same object serves all such steps, so what is derived from it is computed once.
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
