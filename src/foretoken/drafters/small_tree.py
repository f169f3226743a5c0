"""One or several small language models draft a token tree, each level in one pass.

At temperature 0 a node's children are the model's likeliest tokens, above it they are drawn from
its distribution: with replacement (SpecInfer, whose rule asks for it; SpecTr's K i.i.d. drafts are
the shape K, 1, 1, …) or without (MCSD, Sequoia). Sources: Miao et al. 2024 (SpecInfer), section 3;
Sun et al. 2023 (SpecTr), section 4; Yang et al. 2024 (MCSD), section 3; Chen et al. 2024 (Sequoia),
section 4. Several models' trees stand under one root (SpecInfer's merge): chosen nodes are merged
where they share a prefix; drawn ones never are, since a second draw of a token is a second chance
for it. Boost-tuning is in `train/boost.py`. Departures: trees have one shape for all sequences; a
greedy sequence in a batch with sampled ones gets a chain; a greedy batch's tree may be planned for
the costs that are measured here and the rates that are counted (Sequoia does so once, beforehand).

Legend: B sequences, N tree nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.control.cost_model import CostModel
from foretoken.drafters.shared.chain import WithModels
from foretoken.drafters.shared.forgetting import Forgetting
from foretoken.drafters.shared.planned_tree import (
    TreePlanner,
    by_level,
    check_tree,
    parents_of,
)
from foretoken.drafters.shared.ranking import ranking
from foretoken.draws import Draws
from foretoken.errors import ForetokenError, shown
from foretoken.errors.values import check_range
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.model import CausalLM
from foretoken.protocols import Drafter, Step
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, Kind
from foretoken.trees.grow import Frontier, Widths, expand, sample, widths_of
from foretoken.trees.join import assemble, join
from foretoken.trees.plan import AUTO, PAPER, SiblingCounts, best_tree

_NODES, _LEVELS = 64, 10  # of a tree by acceptance
_WIDTHS = (4, 2, 2)


@dataclass(eq=False)
class SmallTree(WithModels):
    """model: folder, hub id, bundled name or loaded model; models: several, whose trees are merged.
    draft_backend: how their linear layers run, e.g. "q4", by default as the target's do.
    draft_vocab_size: how many tokens they may draft, the first ids and the ends of text, None for
    all.

    widths: children of the nodes at each depth, one number for all or one for each, (4, 2, 2) by
    default. replacement: whether drawn siblings may repeat. acceptance: instead of widths, the rate
    at which the b-th child of a node is the accepted one; the tree is then the best of at most
    `tree_nodes` nodes, 64 by default, and `tree_depth` levels, 10 by default.
    num_speculative_tokens: levels; widths are cut to as many, or go on as chains. tree: "paper"
    (this one), or "auto": at temperature 0, where no text depends on it, the tree of at most so
    many nodes and levels that is fastest for measured costs, by rates that are `acceptance` at
    first and then counted; as "paper" where no costs are known.
    learn_every: if not 0, rates are counted from what is accepted, and the tree of "paper" is
    planned again each time this many drafts have been made; then the text sampled at a seed depends
    on the requests before it (its distribution doesn't).
    """

    model: Any = None
    models: Seq[Any] = ()
    widths: Widths | None = None
    replacement: bool = False
    acceptance: Seq[float] = ()
    tree_nodes: int | None = None
    tree_depth: int | None = None
    tree: str = PAPER
    learn_every: int = 0
    num_speculative_tokens: int | None = None
    draft_backend: str | None = None
    draft_vocab_size: int | None = None

    wants = Wants("b")

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, tree_nodes=self.tree_nodes, tree_depth=self.tree_depth)
        check_range(0, math.inf, learn_every=self.learn_every)
        for rate in self.acceptance:
            check_range(0, 1, acceptance=rate)
        if (self.model is None) == (not self.models):
            raise ForetokenError(
                "This method drafts trees with small models; name one as model or several as "
                'models, e.g. {"method": "specinfer", "model": "folder-or-hub-id"}.'
            )
        if len(self.models) > 1 and not self.replacement:
            raise ForetokenError(
                "Trees of several models can't be drawn without replacement, since each would have "
                "to leave out the others' tokens; set replacement to true."
            )
        if self.learn_every and not self.acceptance:
            raise ForetokenError("learn_every needs acceptance, the rates to start from.")
        self._check_shape()
        self._most = _NODES if self.tree_nodes is None else self.tree_nodes
        self._levels = self.num_speculative_tokens or self.tree_depth or _LEVELS
        self._widths: Widths = _WIDTHS if self.widths is None else self.widths
        check_tree(self.tree)
        if self.tree == AUTO and (not self.acceptance or len(self.models) > 1):
            raise ForetokenError(
                "tree 'auto' plans one model's tree from acceptance, the rates to start from; give "
                "these and one model, or set tree to 'paper'."
            )
        if self.num_speculative_tokens is not None:
            self._cut_widths(self.num_speculative_tokens)
        if self.acceptance:
            self._plan(self.acceptance)
        self._counts = SiblingCounts(self.acceptance) if self.learn_every else None
        self.shared = self._counts
        self._planned = (0, 0)
        self._planner = self._new_planner() if self.tree == AUTO else None
        if not self._widths:
            raise ForetokenError(
                "widths is empty; give the children at each depth, e.g. [4, 2, 2]."
            )
        for width in self._widths:
            check_range(1, MOST_NODES, widths=width if isinstance(width, int) else sum(width))
        check_range(1, MOST_NODES, nodes_of_widths=_size(self._widths))
        self.kinds = frozenset(
            {Kind.INDEPENDENT if self.replacement else Kind.WITHOUT_REPLACEMENT}
            # Excludes rules that take all siblings for draws from one distribution.
            | ({Kind.CHOSEN} if len(self.models) > 1 else set())
        )
        branches = _size(self._widths) > len(self._widths)
        self.trees = branches or len(self.models) > 1 or self.learn_every > 0
        self.trees = self.trees or self._planner is not None

    def _new_planner(self) -> TreePlanner[Widths]:
        """The planner of greedy trees; what it counts is shared too."""
        planner = TreePlanner[Widths](
            self.acceptance,
            self._most,
            self._levels,
            lambda plan: widths_of(plan.paths),
        )
        self.shared = planner if self._counts is None else Forgetting(self._counts, planner.reset)
        return planner

    def _check_shape(self) -> None:
        """Raise `ForetokenError` for options of which one would be ignored."""
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        if self.acceptance and self.widths is not None:
            raise ForetokenError(
                f"widths is {shown(self.widths)} and acceptance {shown(self.acceptance)}, each of "
                "which sets the tree's shape; give one of them."
            )
        for name, most in (("tree_nodes", self.tree_nodes), ("tree_depth", self.tree_depth)):
            if most is not None and not self.acceptance:
                raise ForetokenError(
                    f"{name} is {most} and needs acceptance, by which the best tree of so many "
                    "nodes and levels is chosen; give these rates, or widths alone."
                )
        if self.tree_depth is not None and self.num_speculative_tokens is not None:
            raise ForetokenError(
                f"tree_depth is {self.tree_depth} and num_speculative_tokens "
                f"{self.num_speculative_tokens}, and both are the tree's levels; give one of them."
            )

    def _cut_widths(self, levels: int) -> None:
        widths = list(self._widths)[:levels]
        last = widths[-1] if widths else 1
        nodes = 1 if isinstance(last, int) else sum(last)  # a level's widths are one a node, or all
        one: int | tuple[int, ...] = 1 if isinstance(last, int) else (1,) * nodes
        self._widths = (*widths, *[one] * (levels - len(widths)))

    def _plan(self, rates: Seq[float]) -> None:
        self._widths = widths_of(best_tree(rates, self._most, self._levels).paths)

    def _replan(self, counts: SiblingCounts) -> None:
        """Plan a new tree if one is due; the next drafts have its shape."""
        due = (counts.replaced, counts.steps // self.learn_every)
        if due != self._planned:
            self._planned = due
            self._plan(counts.rates())

    def bind(self, access: Access) -> None:
        self._largest = _size(self._widths)
        if self.learn_every or self._planner:  # a tree that is planned again may have other nodes
            self._largest = max(self._largest, self._most)
        self._models = [
            DraftModel(model, access, self._largest, self.draft_backend, self.draft_vocab_size)
            for model in self.models or [self.model]
        ]

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        if self._planner is not None:
            self._planner.price(measure, self, by_level(1))
            if self._counts is not None:
                self._counts.reset()  # measuring drafted for a synthetic text

    @property
    def nodes(self) -> int:
        return len(self._models) * self._largest

    @property
    def small_models(self) -> Seq[CausalLM]:
        return [model.lm for model in self._models]

    @property
    def followers(self) -> Seq[DraftModel]:
        return self._models

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        if self._counts is not None:
            self._replan(self._counts)
        trees = [
            self._tree(model, sequences, budgets, draws.inner(part) if part else draws)
            for part, model in enumerate(self._models)
        ]
        return join(trees).trim(budgets)

    def _tree(
        self, model: DraftModel, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws
    ) -> DraftTree:
        """One model's tree for every sequence that still fits into its context."""
        limits = [min(n, model.room(s)) for s, n in zip(sequences, budgets, strict=True)]
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        if not rows:
            return assemble([], len(sequences), model.device)
        drafting = [sequences[row] for row in rows]
        limits = [limits[row] for row in rows]
        greedy = all(s.params.greedy for s in drafting)
        folded_as = [ranking(s) for s in drafting] if greedy else drafting

        def propose(frontier: Frontier) -> Tensor:
            return fold(model.level(drafting, frontier), folded_as, frontier.contexts).probs

        if greedy:
            widths = (
                self._planner.tree(len(drafting), self._widths) if self._planner else self._widths
            )
            tree = expand(propose, widths, limits, model.device)
        else:
            kind = Kind.INDEPENDENT if self.replacement else Kind.WITHOUT_REPLACEMENT
            tree = sample(propose, self._widths, limits, model.device, draws.take(rows), kind)
        return assemble([(rows, tree)], len(sequences), model.device)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        super().observe(sequences, steps)
        if self._counts is not None:
            for step in steps:
                if step.drafted:
                    self._counts.add(parents_of(step), step.path)
        if self._planner is not None:
            self._planner.observe(steps)


def _size(widths: Widths) -> int:
    """Nodes of a tree with these widths."""
    total, level = 0, 1
    for width in widths:
        level = level * width if isinstance(width, int) else sum(width)
        total += level
    return total
