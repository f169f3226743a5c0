"""How drafts are arranged: trees grown level by level from a drafter's distributions, or filled
from lists.

A drafter gives the distributions of the tokens after the frontier's nodes ([B, M, V]) and gets the
next frontier. `expand`, `beam` and `sample` do this to the end; `Grower` is for drafters that keep
states from level to level. Sources: top-k expansion, Miao et al. 2024
(SpecInfer) section 3.1; independent branches, Sun et al. 2023 (SpecTr) section 4; drawn without
replacement, Yang et al. 2024 (MCSD) and Chen et al. 2024 (Sequoia) section 4.2; beam with rerank,
Li et al. 2024 (EAGLE-2) section 4; trees by rank, Cai et al. 2024 (Medusa) section 2.1; merge by
frequency, He et al. 2024 (REST) section 3.2.

Drawn nodes stand in draw order and are never sorted, merged or left out by what was drawn; only
chosen ones are ranked.

Legend: B sequences, M frontier nodes, E nodes that have been on a frontier, N tree nodes,
V vocabulary, D levels, K candidates a level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.tree import DraftTree, Kind, empty
from foretoken.trees.from_lists import from_paths

Widths = Seq[int | Seq[int]]
"""Children at each depth: one number for every node of the depth, or one for each in order."""

_MEDUSA = (
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 "
    "40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 "
    "90 060 0001 16 070"
)
MEDUSA_63 = tuple(tuple(map(int, path)) for path in _MEDUSA.split())
"""Medusa's default tree for `static` (its `mc_sim_7b_63`): likely nodes first, at most 10 ranks."""


@dataclass(frozen=True)
class Frontier:
    """The nodes whose children come next; at first the root alone.

    slots: [B, M] in the tree. paths: [B, M, depth] draft tokens from the root to each. parents:
    [B, M] index of each node's parent in the frontier before. above: [B, M, E] which nodes of all
    earlier frontiers, in their order, are ancestors of each. open: [B, M] bool, not padding.
    scores: [B, M] log-probability of each path, of chosen nodes only.
    """

    slots: Tensor
    paths: Tensor
    parents: Tensor
    above: Tensor
    open: Tensor
    scores: Tensor

    @property
    def depth(self) -> int:
        return self.paths.shape[2]

    @property
    def tokens(self) -> Tensor:
        """[B, M] the frontier's own tokens (the root has none here: it ends the sequence)."""
        return self.paths[:, :, -1]

    @property
    def sees(self) -> Tensor:
        """[B, M, E + M] bool: the mask of a pass over the frontier by a drafter whose cache holds
        the earlier frontiers' nodes in order: the ancestors of each, and itself."""
        batch, nodes, _ = self.above.shape
        itself = torch.eye(nodes, dtype=torch.bool, device=self.above.device)
        return torch.cat((self.above, itself.expand(batch, -1, -1)), 2)

    def contexts(self) -> list[list[list[int]]]:
        """The paths as host lists, which `fold` reads where a distribution depends on past
        tokens."""
        paths: list[list[list[int]]] = self.paths.tolist()
        return paths

    def take(self, places: Tensor) -> Frontier:
        """The nodes at [B, m] places."""

        def pick(x: Tensor) -> Tensor:
            index = places.reshape(*places.shape, *[1] * (x.dim() - 2))
            return x.gather(1, index.expand(-1, -1, *x.shape[2:]))

        fields = (self.slots, self.paths, self.parents, self.above, self.open, self.scores)
        return Frontier(*map(pick, fields))


class Grower:
    """A tree for each sequence of a batch, all of one shape, grown level by level."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self._batch, self._device = batch, device
        zeros = torch.zeros(batch, 1, 0, dtype=torch.int64, device=device)
        root = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.frontier = Frontier(
            root,
            zeros,
            root,
            zeros.bool(),
            torch.ones_like(root, dtype=torch.bool),
            torch.zeros(batch, 1, device=device),
        )
        self._tokens: list[Tensor] = []  # of each level [B, n], as are these:
        self._parents: list[Tensor] = []
        self._kinds: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._distributions: list[Tensor] = []  # [B, M, V] of each drawn level
        self._made: set[Kind] = set()

    @property
    def nodes(self) -> int:
        return sum(level.shape[1] for level in self._tokens)

    def only(self, places: Seq[int]) -> None:
        """Give children to these nodes of the frontier only."""
        if len(places) < self.frontier.slots.shape[1]:
            index = torch.tensor(places, dtype=torch.int64, device=self._device)
            self.frontier = self.frontier.take(index.expand(self._batch, -1))

    def choose(
        self, distributions: Tensor, widths: int | Seq[int], keep: int | None = None
    ) -> None:
        """Each frontier node's likeliest tokens become its children, chosen.

        The next frontier is all of them, or in each sequence the `keep` likeliest paths.
        """
        origins, ranks = self._places(distributions, widths)
        top = distributions.topk(max(ranks, default=0) + 1)
        gains = top.values[:, origins, ranks].nan_to_num(0.0).log().clamp(max=0)
        scores = self.frontier.scores[:, origins] + gains
        tokens = top.indices[:, origins, ranks]
        self._add(tokens, origins, Kind.CHOSEN, torch.ones_like(tokens, dtype=torch.bool), scores)
        if keep is not None and keep < tokens.shape[1]:
            self.frontier = self.frontier.take(_falling(scores)[:, :keep])

    def draw(self, distributions: Tensor, widths: int | Seq[int], draws: Draws, kind: Kind) -> None:
        """Children drawn from each frontier node's distribution, with or without replacement.

        Every draw of the level has its own number. Where a distribution has too few tokens for
        another draw without replacement there is padding, whatever was drawn."""
        origins, ranks = self._places(distributions, widths)
        removing = kind is Kind.WITHOUT_REPLACEMENT
        remaining = distributions.clone() if removing else distributions
        open_ = torch.ones(self._batch, len(origins), dtype=torch.bool, device=self._device)
        if removing:
            support = (distributions > 0).sum(-1)  # [B, M]
            open_ = torch.tensor(ranks, device=self._device) < support[:, origins]
        tokens = []
        for number, origin in enumerate(origins):
            distribution = remaining[:, origin]
            if removing:
                distribution[:, 0] += ~open_[:, number]  # something to draw from
            tokens.append(draws.draft(distribution, self.frontier.depth, number))
            if removing:
                distribution.scatter_(-1, tokens[-1][:, None], 0.0)
        scores = torch.zeros(self._batch, len(origins), device=self._device)
        self._distributions.append(distributions)
        self._add(torch.stack(tokens, 1), origins, kind, open_, scores)

    def _places(self, distributions: Tensor, widths: int | Seq[int]) -> tuple[list[int], list[int]]:
        """For each child of the level: its parent's index in the frontier, and its rank there."""
        nodes, vocab = distributions.shape[1:]
        node_widths = [widths] * nodes if isinstance(widths, int) else list(widths)
        if nodes != self.frontier.slots.shape[1] or len(node_widths) != nodes:
            raise ForetokenError(
                f"{nodes} distributions and {len(node_widths)} widths for a frontier of "
                f"{self.frontier.slots.shape[1]} nodes; give one of each for every node."
            )
        pairs = [
            (m, rank) for m, width in enumerate(node_widths) for rank in range(min(width, vocab))
        ]
        return [m for m, _ in pairs], [rank for _, rank in pairs]

    def _add(
        self, tokens: Tensor, origins: list[int], kind: Kind, open_: Tensor, scores: Tensor
    ) -> None:
        before, first = self.frontier, self.nodes + 1
        at = torch.tensor(origins, dtype=torch.int64, device=self._device).expand(self._batch, -1)
        slots = torch.arange(first, first + len(origins), device=self._device)
        above, sees = before.take(at), before.sees
        open_ = open_ & above.open
        self._tokens.append(tokens)
        self._parents.append(above.slots)
        self._kinds.append(torch.where(open_, int(kind), int(Kind.PADDING)).to(torch.int8))
        rows = sum(distributions.shape[1] for distributions in self._distributions[:-1])
        self._rows.append(at * 0 if kind is Kind.CHOSEN else at + rows)
        self._scores.append(scores)
        self._made.add(kind)
        self.frontier = Frontier(
            slots.expand(self._batch, -1),
            torch.cat((above.paths, tokens[..., None]), 2),
            at,
            sees.gather(1, at[..., None].expand(-1, -1, sees.shape[2])),
            open_,
            scores,
        )

    def tree(self) -> DraftTree:
        """All nodes, in the order in which they were added."""
        if not self.nodes:
            return empty(self._batch, self._device)
        chain = self.nodes == len(self._tokens)
        drawn = bool(self._distributions)
        mixed = len(self._made) > 1 or Kind.WITHOUT_REPLACEMENT in self._made
        plain = chain and len(self._distributions) == self.nodes  # each node has its own row
        return DraftTree(
            torch.cat(self._tokens, 1),
            [self.nodes] * self._batch,
            parents=None if chain else torch.cat(self._parents, 1),
            kinds=torch.cat(self._kinds, 1) if mixed else None,
            kind=min(self._made),
            proposals=torch.cat(self._distributions, 1) if drawn else None,
            rows=torch.cat(self._rows, 1) if drawn and not plain else None,
        )

    def ranked(self, budgets: Seq[int]) -> DraftTree:
        """The likeliest `budgets[b]` nodes of each tree, likeliest path first; chosen nodes only.

        These form a tree: a path is never likelier than its beginning, which was added before it.
        """
        if self._distributions:
            raise ForetokenError("Drawn nodes can't be ranked: that would bias what is written.")
        tree = self.tree()
        if not tree.nodes:
            return tree
        order = _falling(torch.cat(self._scores, 1))  # [B, N]
        moved = torch.cat((order.new_zeros(self._batch, 1), order.argsort(1) + 1), 1)  # by old slot
        parents = moved.gather(1, tree.parent_slots.gather(1, order))
        return DraftTree(tree.tokens.gather(1, order), tree.counts, parents).trim(budgets)


def _falling(scores: Tensor) -> Tensor:
    """Indices of scores [B, n] from the highest down, the first of equals first."""
    return scores.sort(dim=1, descending=True, stable=True).indices


Propose = Callable[[Frontier], Tensor]
"""The drafter's distributions [B, M, V] of the tokens after the frontier's nodes."""


def expand(propose: Propose, widths: Widths, budgets: Seq[int], device: torch.device) -> DraftTree:
    """The likeliest tokens at every node, `widths` many at each depth: chosen."""
    grower = Grower(len(budgets), device)
    for level in _levels(grower, widths, max(budgets, default=0)):
        grower.choose(propose(grower.frontier), level)
    return grower.tree().trim(budgets)


def beam(
    propose: Propose, width: int, depth: int, budgets: Seq[int], device: torch.device
) -> DraftTree:
    """`width` likeliest tokens at each of the `width` likeliest paths of every depth, and of all
    these nodes the likeliest `budgets[b]`: chosen."""
    grower = Grower(len(budgets), device)
    # All levels, however small the budgets: timed drafts of few nodes tell what a level costs.
    for _ in range(depth if max(budgets, default=0) else 0):
        grower.choose(propose(grower.frontier), width, keep=width)
    return grower.ranked(budgets)


def sample(
    propose: Propose,
    widths: Widths,
    budgets: Seq[int],
    device: torch.device,
    draws: Draws,
    kind: Kind,
) -> DraftTree:
    """A drawn tree, `widths` many children at each depth; `kind` says how siblings are drawn.

    Widths (K, 1, 1, …) of independent nodes are K independent branches.
    """
    grower = Grower(len(budgets), device)
    for level in _levels(grower, widths, max(budgets, default=0)):
        grower.draw(propose(grower.frontier), level, draws, kind)
    return grower.tree().trim(budgets)


def _levels(grower: Grower, widths: Widths, budget: int) -> Iterator[list[int]]:
    """Each level's positive widths, with the frontier narrowed to the nodes that they are for."""
    for level in widths:
        nodes = grower.frontier.slots.shape[1]
        node_widths = [level] * nodes if isinstance(level, int) else list(level)
        if len(node_widths) != nodes:
            raise ForetokenError(
                f"{len(node_widths)} widths {node_widths} for a level of {nodes} nodes."
            )
        if grower.nodes >= budget or not any(node_widths):
            return
        grower.only([place for place, width in enumerate(node_widths) if width])
        yield [width for width in node_widths if width]


def widths_of(paths: Seq[Seq[int]]) -> list[list[int]]:
    """The widths, for `expand` and `sample`, of a tree given by rank paths. Its nodes are listed
    level by level, a parent's children together."""
    nodes = {tuple(path) for path in paths}
    children = Counter(path[:-1] for path in nodes)
    for path in nodes:
        if path[-1] >= children[path[:-1]] or (path[:-1] and path[:-1] not in nodes):
            raise ForetokenError(
                f"The tree has the node {path} but not all of its earlier siblings and its parent."
            )
    level: list[tuple[int, ...]] = [()]
    widths: list[list[int]] = []
    while any(children[path] for path in level):
        widths.append([children[path] for path in level])
        level = [(*path, rank) for path in level for rank in range(children[path])]
    return widths


def static(paths: Seq[Seq[int]], candidates: Tensor) -> DraftTree:
    """The tree of the given rank paths over candidates [B, D, K], each level's tokens from the
    likeliest down, whatever the path before them: chosen.

    Nodes stand in the order of `paths`, in which parents must come before children.
    """
    levels, ranks, parents = _template(tuple(map(tuple, paths)), candidates.device)
    _, depth, width = candidates.shape
    needed = max(map(len, paths), default=0), 1 + max((max(path) for path in paths), default=-1)
    if needed[0] > depth or needed[1] > width:
        raise ForetokenError(
            f"The tree needs {needed[0]} levels of {needed[1]} candidates; given are {depth} of "
            f"{width}."
        )
    batch = candidates.shape[0]
    return DraftTree(
        candidates[:, levels, ranks], [len(paths)] * batch, parents=parents.expand(batch, -1)
    )


@lru_cache(maxsize=32)
def _template(
    paths: tuple[tuple[int, ...], ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """[N] each of a tree by rank paths: the nodes' levels (from 0), ranks and parents' slots."""
    slots: dict[tuple[int, ...], int] = {(): 0}
    for path in paths:
        if not path or path in slots or path[:-1] not in slots:
            raise ForetokenError(f"The node {path} is listed twice or before its parent.")
        slots[path] = len(slots)
    columns = [(len(path) - 1, path[-1], slots[path[:-1]]) for path in paths]
    levels, ranks, parents = torch.tensor(columns, device=device).reshape(-1, 3).long().T
    return levels, ranks, parents


def merge(
    paths: Seq[Seq[Seq[int]]], weights: Seq[Seq[float]], budgets: Seq[int], device: torch.device
) -> DraftTree:
    """For each sequence a list of token paths with their weights, merged where they share a
    prefix; the `budgets[b]` heaviest prefixes are kept, heaviest first: chosen."""
    rows = zip(paths, weights, budgets, strict=True)
    return from_paths([_heaviest(*row) for row in rows], device)


def _heaviest(branches: Seq[Seq[int]], weights: Seq[float], budget: int) -> list[tuple[int, ...]]:
    """A prefix's weight is the sum of its branches', so never more than that of its own
    prefixes."""
    total: dict[tuple[int, ...], float] = {}
    for branch, weight in zip(branches, weights, strict=True):
        for end in range(1, len(branch) + 1):
            prefix = tuple(branch[:end])
            total[prefix] = total.get(prefix, 0) + weight
    return sorted(total, key=lambda prefix: (-total[prefix], len(prefix)))[:budget]
