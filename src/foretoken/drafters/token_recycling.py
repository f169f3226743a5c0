"""Token Recycling: draft the tokens that the target found likeliest after each token last time.

Source: Luo et al. 2025 (Token Recycling), section 3. A matrix stores for every token of the
vocabulary the target's k likeliest next tokens at the last place where that token was scored;
accepted or not, each node of each step is recycled. The draft is a static tree filled level by
level from the matrix: the one that is fastest for measured costs, or one whose levels have the
sizes of the paper's. Likelier places stand first. Departures: levels of the paper's sizes hold the
places with the smallest product of ranks (counted from 1), which at 8 of the 80 nodes are others
than in the tree of the authors' code; a row that nothing was written to drafts nothing, where the
paper drafts token 0; where a token was scored more than once in a step, an accepted place outweighs
the others.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, k candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.control.cost_model import CostModel
from foretoken.drafters.shared.depth import draft_depth
from foretoken.drafters.shared.forgetting import Forgetting
from foretoken.drafters.shared.planned_tree import (
    TreePlanner,
    check_tree,
    whole,
)
from foretoken.drafters.shared.salt import shares
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.files import read_arrays, write_arrays
from foretoken.protocols import BaseDrafter, Drafter, Shared, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, empty
from foretoken.trees.plan import AUTO, Paths

_KIND = "token recycling matrix"
_UNKNOWN = -1
_RATES = (0.5, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01)  # by rank, before drafts are counted

Template = list[list[tuple[int, int]]]
"""For each level of a tree its nodes as (slot of the parent, rank), the likeliest first."""


@dataclass(eq=False)
class TokenRecycling(BaseDrafter):
    """num_candidates: next tokens stored for each token; level_sizes: nodes of each level;
    num_speculative_tokens: fewer levels; tree: "paper" (all of `level_sizes`), or "auto": planned
    for measured costs, with at most as many nodes and levels; as "paper" where none are known."""

    num_candidates: int = 8
    level_sizes: tuple[int, ...] = (8, 21, 25, 15, 8, 3)
    num_speculative_tokens: int | None = None
    tree: str = AUTO

    wants = Wants("ab")
    trees = True

    def __post_init__(self) -> None:
        if self.num_candidates < 1 or not self.level_sizes or min(self.level_sizes) < 1:
            raise ForetokenError(
                f"num_candidates is {self.num_candidates} and level_sizes {self.level_sizes}; "
                "need at least one candidate, one level, and one node a level."
            )
        check_range(1, 256, num_candidates=self.num_candidates)
        check_range(1, MOST_NODES, level_sizes=sum(self.level_sizes))
        levels = len(self.level_sizes)
        most = draft_depth(self.num_speculative_tokens, levels, f"level_sizes has {levels} levels")
        self.level_sizes = self.level_sizes[:most]
        check_tree(self.tree)

    @property
    def nodes(self) -> int:
        return sum(self.level_sizes)

    def bind(self, access: Access) -> None:
        self._matrix = Matrix(access.vocab_size, self.num_candidates, access.device)
        self._paper = _Levels(template(self.level_sizes, self.num_candidates), access.device)
        self._planner = TreePlanner(
            _RATES[: self.num_candidates],
            self.nodes,
            len(self.level_sizes),
            lambda plan: _Levels(template_of(plan.paths), access.device),
        )
        planned = self.tree == AUTO
        self.shared: Shared = (
            Forgetting(self._matrix, self._planner.reset) if planned else self._matrix
        )

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        if self.tree == AUTO:
            self._planner.price(measure, self, whole)
            self.shared.reset()  # measuring drafted for a synthetic text

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        """The template's known nodes; parents stand before children, likelier ones first."""
        levels = self._planner.tree(len(sequences), self._paper)
        device = levels.parents.device
        if not levels.pairs or max(budgets) < 1:
            return empty(len(sequences), device)
        roots = torch.tensor([[sequence.tokens[-1]] for sequence in sequences], device=device)
        tokens = roots.new_empty(len(sequences), len(levels.parents))
        for matrix, rows in self._matrices(sequences):
            tokens[rows] = matrix.filled(roots[rows], levels)
        return _known(tokens, levels.parents).trim(budgets)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        if not steps or not steps[0].tokens:
            return  # prefill brings no scores
        self._planner.observe(steps)
        tree, scores = steps[0].tree, steps[0].scores
        rows = torch.tensor([step.row for step in steps], device=scores.logits.device)
        roots = [
            [sequence.tokens[-len(step.tokens) - 1]]
            for sequence, step in zip(sequences, steps, strict=True)
        ]
        tokens = torch.cat((torch.tensor(roots, device=rows.device), tree.tokens[rows]), 1)
        worth = torch.cat((torch.ones_like(rows)[:, None], tree.valid[rows].long()), 1)  # [B, S]
        for place, step in enumerate(steps):
            worth[place, [0, *step.path]] = 2
        worth *= ~scores.bad[rows]
        for matrix, own in self._matrices(sequences):
            matrix.learn(tokens[own], scores.logits[rows[own]], worth[own])

    def _matrices(self, sequences: Seq[Sequence]) -> list[tuple[Matrix, list[int]]]:
        """The matrices of these, each with the rows that it is for: one for all that share, and for
        each other request its own."""
        together = [row for row, sequence in enumerate(sequences) if shares(sequence)]
        found = [(self._matrix, together)] if together else []
        for row, sequence in enumerate(sequences):
            if not shares(sequence):
                if self not in sequence.state:
                    sequence.state[self] = self._matrix.empty()
                found.append((sequence.state[self], [row]))
        return found


class _Levels:
    """A template on a device. pairs: of each level the parents' slots [n] and the ranks [n].
    parents: [N] the slots of all levels' parents."""

    def __init__(self, levels: Template, device: torch.device) -> None:
        self.pairs = [torch.tensor(level, device=device).T for level in levels]
        flat = [slot for level in levels for slot, _ in level]
        self.parents = torch.tensor(flat, dtype=torch.int64, device=device)


def template(level_sizes: Seq[int], candidates: int) -> Template:
    """A tree of these sizes: of each level the places with the smallest product of ranks."""
    levels: Template = []
    above: list[tuple[int, int]] = [(0, 1)]  # slot, product of the ranks
    slots = 1
    for size in level_sizes:
        children = sorted(
            (product * (rank + 1), slot, rank)
            for slot, product in above
            for rank in range(candidates)
        )[:size]
        levels.append([(slot, rank) for _, slot, rank in children])
        above = [(slots + i, product) for i, (product, _, _) in enumerate(children)]
        slots += len(children)
    return levels


def template_of(paths: Paths) -> Template:
    """The tree of these rank paths."""
    ordered = sorted(paths, key=lambda path: (len(path), prod(rank + 1 for rank in path), path))
    slots = {(): 0} | {path: slot for slot, path in enumerate(ordered, 1)}
    levels: Template = [[] for _ in range(max(map(len, paths), default=0))]
    for path in ordered:
        levels[len(path) - 1].append((slots[path[:-1]], path[-1]))
    return levels


def _known(tokens: Tensor, parents: Tensor) -> DraftTree:
    """The tree without the nodes [B, N] that hold no token; nothing hangs below these."""
    known = tokens >= 0
    counts = known.sum(1).tolist()
    slots = torch.cat((known.new_zeros(len(known), 1), known), 1).cumsum(1)  # [B, S] by old slot
    order = (~known).byte().argsort(dim=1, stable=True)[:, : max(counts)]
    kept = known.gather(1, order)
    above = slots.gather(1, parents.expand_as(tokens)).gather(1, order)
    return DraftTree(tokens.gather(1, order) * kept, counts, above * kept)


class Matrix:
    """rows [V + 1, k]: the likeliest next tokens of each token, -1 where nothing is known.

    The last row stays empty, so that what follows an unknown token (-1) is unknown.
    """

    def __init__(self, vocab_size: int, candidates: int, device: torch.device) -> None:
        self.rows = torch.full((vocab_size + 1, candidates), _UNKNOWN, device=device)

    def empty(self) -> Matrix:
        """A matrix of the same size in which nothing is known."""
        return Matrix(len(self.rows) - 1, self.rows.shape[1], self.rows.device)

    def filled(self, roots: Tensor, levels: _Levels) -> Tensor:
        """The nodes [B, N] of a tree below each root [B, 1]; -1 where nothing is known."""
        tokens = roots  # [B, slots so far]
        for parents, ranks in levels.pairs:
            tokens = torch.cat((tokens, self.rows[tokens[:, parents], ranks]), 1)
        return tokens[:, 1:]

    def learn(self, tokens: Tensor, logits: Tensor, worth: Tensor) -> None:
        """Store the top of the logits [B, S, V] after tokens [B, S].

        worth [B, S]: where a token occurs more than once, the place of the highest worth counts, of
        equals the last; places of worth 0 are left out.
        """
        tokens, worth = tokens.flatten(), worth.flatten()
        places = torch.arange(len(tokens), device=tokens.device)
        rank = torch.where(worth > 0, worth * len(tokens) + places, _UNKNOWN)
        best = torch.full_like(self.rows[:, 0], _UNKNOWN).scatter_reduce_(0, tokens, rank, "amax")
        counts = (rank == best[tokens]) & (worth > 0)
        known = min(self.rows.shape[1], logits.shape[-1])
        self.rows[tokens[counts], :known] = logits.flatten(0, 1)[counts].topk(known).indices

    def reset(self) -> None:
        """Forget everything."""
        self.rows.fill_(_UNKNOWN)

    def save(self, path: str | Path) -> None:
        """Write the matrix to a file."""
        rows = self.rows[:-1].cpu().numpy().astype(np.int32)
        write_arrays(path, _KIND, self._made_for, {"rows": rows})

    def load(self, path: str | Path) -> None:
        """Read a file's matrix. Raises `ForetokenError` for a damaged file or one of another
        vocabulary or number of candidates."""
        rows = read_arrays(path, _KIND, self._made_for, ("rows",))["rows"].astype(np.int64)
        inside = (rows >= _UNKNOWN) & (rows < len(self.rows) - 1)
        if rows.shape != self.rows[:-1].shape or not inside.all():
            raise ForetokenError(f"{path} is damaged: its rows are no tokens; make it again.")
        self.rows[:-1] = torch.from_numpy(rows)

    @property
    def _made_for(self) -> dict[str, int | str]:
        return {"vocab_size": len(self.rows) - 1, "num_candidates": self.rows.shape[1]}
