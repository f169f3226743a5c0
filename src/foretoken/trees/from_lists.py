"""Chosen trees from lists on the host: token paths, or tokens with the slots of their parents."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.tree import DraftTree, chains


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
