"""Draft trees given by token ranks: their acceptance along a text, and the best tree of n nodes.

A path names at each level the rank of a token in the drafter's distribution: (0, 2) is the third
likeliest token after the likeliest; where siblings are drawn, the third after the first. Source:
Cai et al. 2024 (Medusa), section 2.3.3 and appendix C.

Legend: B rows, T places, H levels or heads, K siblings, R roots.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.tree import MOST_NODES
from foretoken.trees.best_first import best_first
from foretoken.trees.grow import MEDUSA_63
from foretoken.trees.plan import AUTO, PAPER

PLANNED = "planned"
"""The name of a tree that is planned by a checkpoint's rates."""

Paths = tuple[tuple[int, ...], ...]
"""A tree as the rank paths of its nodes, parents first."""


def tree_acceptance(ranks: Tensor, max_nodes: Tensor, paths: Seq[Seq[int]]) -> Tensor:
    """[B, T, levels] bool: whether more than n levels are accepted, by the ranks [B, T, H] of the
    text's tokens; only the tree's first `max_nodes` [B, T] nodes are drafted."""
    depth = max(map(len, paths), default=0)
    most = 1 + max((max(path) for path in paths), default=0)
    slots: dict[tuple[int, ...], int] = {(): 0}
    slots |= {tuple(path): slot for slot, path in enumerate(paths, 1)}
    accepted = max_nodes > 0
    node = torch.zeros_like(max_nodes)  # the slot of what is accepted so far
    levels = []
    for level in range(depth):
        own = [path for path in slots if len(path) == level + 1]
        children = sorted((slots[path[:-1]] * most + path[-1], slots[path]) for path in own)
        codes, found = torch.tensor(children, device=max_nodes.device).T.contiguous()
        code = node * most + ranks[:, :, level]
        at = torch.searchsorted(codes, code).clamp(max=len(codes) - 1)
        hit = (codes[at] == code) & (ranks[:, :, level] < most) & (found[at] <= max_nodes)
        accepted, node = accepted & hit, found[at]
        levels.append(accepted)
    return torch.stack(levels, 2) if levels else accepted[..., None][..., :0]


def drawn_tree_acceptance(chances: Tensor, max_nodes: Tensor, paths: Seq[Seq[int]]) -> Tensor:
    """[B, T, levels] the chance that more than n levels are accepted of a tree whose siblings are
    drawn one after the other; chances: [B, T, H, K] that the text's token is accepted as the first,
    the second … of them; only the tree's first `max_nodes` [B, T] nodes are drafted."""
    levels = chances.new_zeros(*max_nodes.shape, max(map(len, paths), default=0))
    reached: dict[tuple[int, ...], Tensor] = {(): torch.ones_like(chances[..., 0, 0])}
    for place, path in enumerate(tuple(path) for path in paths):
        own = chances[:, :, len(path) - 1, path[-1]] * (place < max_nodes)
        reached[path] = reached[path[:-1]] * own
        levels[:, :, len(path) - 1] += reached[path]
    return levels


def rank_counts(ranks: Tensor, max_nodes: Tensor, most: int = 10) -> Tensor:
    """[H, most + 1] how often the text's token was each head's likeliest, its second …; the last
    column is the number of roots."""
    at_roots = ranks[max_nodes >= 0]  # [R, H]
    counts = [(at_roots == rank).sum(0) for rank in range(most)]
    return torch.stack([*counts, torch.full_like(counts[0], len(at_roots))], 1).cpu()


def rank_rates(counts: Tensor) -> list[list[float]]:
    """Shares [H][ranks] of counts [H, ranks + 1]."""
    shares: list[list[float]] = (counts[:, :-1] / counts[:, -1:].clamp(min=1)).tolist()
    return [[round(share, 5) for share in head] for head in shares]


def plan_tree(rates: Seq[Seq[float]], nodes: int) -> Paths:
    """The `nodes` likeliest rank paths, where rates[i][r] is how often head i's token of rank r is
    right; a path's probability is taken to be their product. A rank is taken to be at least as
    likely as those after it: that few counts say otherwise is chance, and a tree that grows level
    by level has no child without its earlier siblings."""
    falling = [[max(head[rank:]) for rank in range(len(head))] for head in rates]

    def following(level: int) -> list[tuple[float, int, int]]:
        shares = falling[level] if level < len(falling) else ()
        return [(rate, rank, level + 1) for rank, rate in enumerate(shares) if rate > 0]

    best = best_first(0, following, nodes)
    paths: list[tuple[int, ...]] = [()]
    for rank, parent in zip(best.tokens, best.parents, strict=True):
        paths.append((*paths[parent], rank))
    return tuple(paths[1:])


def tree_from_option(tree: str | Seq[Seq[int]], nodes: int, rates: Seq[Seq[float]] | None) -> Paths:
    """The option `tree` of a drafter: "paper" (of Medusa's 63 nodes the likeliest `nodes`), "auto"
    (these, from which a tree is planned while serving), "planned" (of `nodes` nodes, by the
    checkpoint's rates), or rank paths."""
    if not isinstance(tree, str):
        check_paths(tree)
        return tuple(tuple(path) for path in tree)
    if tree in (PAPER, AUTO):
        return MEDUSA_63[:nodes]
    if tree != PLANNED:
        raise ForetokenError(
            f"tree is {tree!r}; it must be 'auto', 'paper', 'planned' or a list of rank paths such "
            "as [[0], [1], [0, 0]]."
        )
    if not rates:
        raise ForetokenError(
            "This checkpoint has no acceptance rates to plan a tree by; use tree 'auto' or "
            "'paper', or give rank paths."
        )
    return plan_tree(rates, nodes)


def check_paths(paths: Seq[Seq[int]]) -> None:
    """Raise `ForetokenError` for what are no rank paths, or too many."""
    if len(paths) > MOST_NODES or any(not path or min(path) < 0 for path in paths):
        raise ForetokenError(
            f"tree is {shown(paths)}; it must be a list of at most {MOST_NODES} rank paths such as "
            "[[0], [1], [0, 0]], none of them empty or negative."
        )
    nodes = {(), *map(tuple, paths)}
    for path in nodes - {()}:
        if path[:-1] not in nodes:
            raise ForetokenError(
                f"The tree has the node {list(path)} but not its parent {list(path[:-1])}; list "
                "both."
            )


def fitting_paths(paths: Paths, depth: int, vocab_size: int) -> Paths:
    """The paths of a tree that fit into `depth` levels and a vocabulary of this size."""
    return tuple(p for p in paths if len(p) <= depth and max(p) < vocab_size)
