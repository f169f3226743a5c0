"""Drafters around one decoder layer, and the two trees that they draft: given, and grown.

Sources: Li et al. 2024 (EAGLE), section 3.1 and appendix A (a given tree); Li et al. 2024
(EAGLE-2), section 4 (a tree that grows along the likeliest paths). Departure: how many nodes and
levels a grown tree has may be planned for measured costs. The plan is for a tree by rank with the
same acceptance by sibling rank; a grown tree of as many nodes accepts no less.

Legend: B rows, T places, R roots, I levels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.control.cost_model import CostModel
from foretoken.drafters.shared.planned_tree import (
    RATES,
    TreePlanner,
    by_level,
    check_tree,
)
from foretoken.drafters.shared.ranking import ranking
from foretoken.draws import Draws
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter, Drafter, Step
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.feature_layer import FeatureModel
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.narrow import loaded
from foretoken.trainable.rank_trees import (
    Paths,
    check_paths,
    drawn_tree_acceptance,
    fitting_paths,
    tree_acceptance,
)
from foretoken.tree import MOST_NODES, DraftTree, Kind
from foretoken.trees.grow import Frontier, beam, expand, sample, widths_of
from foretoken.trees.join import assemble
from foretoken.trees.plan import AUTO

_CHUNK = 128  # roots whose distributions of all levels exist at once


class TreeBuilder(Protocol):
    """Makes a drafter's trees, of at most `nodes` nodes, and estimates what is accepted of them.
    run: the most nodes that the layer runs on for a tree, whether they are kept or not."""

    @property
    def nodes(self) -> int: ...

    @property
    def run(self) -> int: ...

    def fitted(self, vocab_size: int) -> TreeBuilder:
        """The builder for a vocabulary of this size."""
        ...

    def draft(
        self, model: FeatureModel, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws
    ) -> DraftTree:
        """A tree for each sequence, none where the model is not `ready`."""
        ...

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, levels] as `Trainable.acceptance` has it."""
        ...


@dataclass(eq=False)
class FeatureDrafter(BaseDrafter):
    """A drafter names the class of its `module`, and sets its `tree_builder` when it is made."""

    model: Any = None

    module: ClassVar[type[Trained]]
    wants = Wants("bc", (-1,))

    def __post_init__(self) -> None:
        self.module.check_source(self.model)
        self.tree_builder: TreeBuilder

    def bind(self, access: Access) -> None:
        module: Any = loaded(self.module, self.model, access)
        self._module = module
        run = self.tree_builder.run
        self._model = FeatureModel(module, module.layer_shape, access, nodes=run)
        self._tree = self.tree_builder.fitted(access.vocab_size)

    @property
    def nodes(self) -> int:
        return self._tree.nodes

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return self._tree.draft(self._model, sequences, budgets, draws)

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, levels] whether a step whose root is there accepts more than n places."""
        return self.tree_builder.fitted(module.facts.vocab_size).acceptance(module, lesson)

    def begin(self, sequence: Sequence) -> None:
        self._model.begin(sequence)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._model.observe(sequences, steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._model.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._model.end(sequence)


@dataclass(frozen=True)
class LikeliestPaths:
    """A `TreeBuilder`: at each level the `top_k` likeliest paths get `top_k` children each, and of
    all nodes the `nodes` on the likeliest paths are kept. depth: levels."""

    depth: int
    top_k: int
    nodes: int

    @property
    def run(self) -> int:
        """The paths that each level but the last continues."""
        return max(0, self.depth - 1) * self.top_k

    def fitted(self, vocab_size: int) -> LikeliestPaths:
        return self

    def draft(
        self, model: FeatureModel, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws
    ) -> DraftTree:
        rows = model.ready_rows(sequences, budgets)
        if not rows:
            return assemble([], len(sequences), model.device)
        ready = [sequences[row] for row in rows]

        def ask(frontier: Frontier) -> Tensor:
            return model.level(ready, frontier).softmax(-1)

        nodes = [min(self.nodes, budgets[row]) for row in rows]
        tree = beam(ask, self.top_k, self.depth, nodes, model.device)
        return assemble([(rows, tree)], len(sequences), model.device)

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, depth] 0 or 1.

        What is drafted after other paths isn't known from one pass: it is taken to be what is
        drafted after the text's own.
        """
        outputs, length = module.outputs(lesson, self.depth), lesson.tokens.shape[1]
        accepts = lesson.tokens.new_zeros(*lesson.tokens.shape, self.depth, dtype=torch.bool)
        row, root = ((lesson.max_nodes > 0) & (lesson.positions > 0)).nonzero(as_tuple=True)
        ahead = torch.arange(1, self.depth + 1, device=row.device)
        for r, t in zip(row.split(_CHUNK), root.split(_CHUNK), strict=True):
            place, max_nodes = (t[:, None] + ahead).clamp(max=length - 1), lesson.max_nodes[r, t]
            probs = module.logits(outputs[r, t - 1], lesson.head).softmax(-1)
            nodes = max_nodes.clamp(max=self.nodes)
            drafted = in_beam(probs, lesson.tokens[r[:, None], place], self.top_k, nodes)
            same = lesson.records[r[:, None], place] == lesson.records[r, t][:, None]
            inside = same & (t[:, None] + ahead < length) & (ahead <= max_nodes[:, None])
            accepts[r, t] = (drafted & inside).cumprod(-1).bool()
        return accepts


@dataclass(eq=False)
class GrownTree(FeatureDrafter):
    """model: a checkpoint's folder, hub id or bundled name; depth: levels of the tree; top_k: paths
    that each level continues, and children of each; tree_nodes: nodes that are kept, those of the
    likeliest paths; tree: "paper" (these sizes), or "auto": nodes and levels planned for measured
    costs, at most so many; as "paper" where none are known."""

    depth: int = 6
    top_k: int = 10
    tree_nodes: int = 59
    tree: str = AUTO

    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, depth=self.depth, top_k=self.top_k, tree_nodes=self.tree_nodes)
        check_tree(self.tree)
        super().__post_init__()
        self._paper = LikeliestPaths(self.depth, self.top_k, self.tree_nodes)
        self.tree_builder = self._paper
        self._planner = TreePlanner(
            RATES[: self.top_k],
            min(self.tree_nodes, self.top_k + (self.depth - 1) * self.top_k**2),
            self.depth,
            lambda plan: LikeliestPaths(plan.depth, self.top_k, len(plan.paths)),
        )
        if self.tree == AUTO:
            self.shared = self._planner

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        if self.tree == AUTO:
            self._planner.price(measure, self, by_level(self.depth))

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        tree = self._planner.tree(len(sequences), self._paper)
        return tree.draft(self._model, sequences, budgets, draws)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        super().observe(sequences, steps)
        self._planner.observe(steps)


def in_beam(probs: Tensor, goal: Tensor, width: int, nodes: Tensor) -> Tensor:
    """[R, I] whether tokens `goal` [R, I] are in the trees that `beam` makes of R roots.

    Level i has the distribution probs[:, i] of [R, I, V], that after the goals before it, whichever
    path it is asked after. nodes: [R] how many are kept of each tree.
    """
    chance = probs.gather(-1, goal[..., None])
    ranked_high = ((probs > chance).sum(-1) < width) & (chance[..., 0] > 0)
    top, path_chance = probs.topk(min(width, probs.shape[-1])).values, chance[..., 0].cumprod(-1)
    paths, levels, drafted = probs.new_ones(len(probs), 1), [], []
    alive = torch.ones_like(ranked_high[:, 0])
    for i in range(probs.shape[1]):
        children = (paths[:, :, None] * top[:, i, None]).flatten(1)
        paths = children.topk(min(width, children.shape[1])).values
        levels.append(children)
        drafted.append(alive & ranked_high[:, i])
        alive = drafted[-1] & (path_chance[:, i] >= paths[:, -1])
    ranked = torch.cat(levels, 1).sort(descending=True).values
    last = ranked.gather(1, (nodes[:, None] - 1).clamp(0, ranked.shape[1] - 1))
    return torch.stack(drafted, 1) & (path_chance >= last) & (nodes > 0)[:, None]


class GivenTree:
    """A `TreeBuilder` of rank paths, each with all its earlier siblings and its parent. At
    temperature 0 a node's children are the likeliest tokens, above it they are drawn without
    replacement. branches: whether it is more than a chain."""

    def __init__(self, paths: Seq[Seq[int]]) -> None:
        check_paths(paths)
        self._paths: Paths = tuple(
            sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        )
        self._widths = widths_of(self._paths)
        self.branches = any(max(path) for path in paths)

    @property
    def nodes(self) -> int:
        return len(self._paths)

    @property
    def run(self) -> int:
        return self.nodes

    def fitted(self, vocab_size: int) -> GivenTree:
        """The part of the tree that a vocabulary of this size can fill."""
        depth = max(map(len, self._paths), default=0)
        return GivenTree(fitting_paths(self._paths, depth, vocab_size))

    def draft(
        self, model: FeatureModel, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws
    ) -> DraftTree:
        rows, device = model.ready_rows(sequences, budgets), model.device
        if not rows or not self._widths:
            return assemble([], len(sequences), device)
        ready, limits = [sequences[row] for row in rows], [budgets[row] for row in rows]
        greedy = all(sequence.params.greedy for sequence in ready)
        views = [ranking(sequence) for sequence in ready] if greedy else ready

        def ask(frontier: Frontier) -> Tensor:
            return fold(model.level(ready, frontier), views, frontier.contexts).probs

        if greedy:
            tree = expand(ask, self._widths, limits, device)
        else:
            kind = Kind.WITHOUT_REPLACEMENT
            tree = sample(ask, self._widths, limits, device, draws.take(rows), kind)
        return assemble([(rows, tree)], len(sequences), device)

    def acceptance(self, module: Any, lesson: Lesson) -> Tensor:
        """[B, T, levels] 0 or 1 at temperature 0; above it the chance."""
        depth = max(map(len, self._paths))
        if not lesson.temperature:
            return tree_acceptance(module.ranks(lesson, depth), lesson.max_nodes, self._paths)
        siblings = 1 + max(max(path) for path in self._paths)
        chances = module.chances(lesson, depth, siblings)
        return drawn_tree_acceptance(chances, lesson.max_nodes, self._paths)
