"""Shared by drafters with heads on the target's last state: the module, and trees by rank.

A module gives the state of each head at places of a text (`head_states`); losses, estimates and
counts follow from that. Heads have their own language-model heads, or share the target's.
Sources: Cai et al. 2024 (Medusa), sections 2.1 and 2.3.3; Ankner et al. 2024 (Hydra), section 3.

Legend: B rows, T places, H heads, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters.shared.depth import draft_depth
from foretoken.drafters.shared.planned_tree import RATES, TreePlanner, by_level, whole
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.protocols import BaseDrafter, Drafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Trained, VocabularyLayers, weight_of
from foretoken.trainable.head_losses import heads_loss, ranks_at_roots
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.narrow import loaded
from foretoken.trainable.rank_trees import (
    PLANNED,
    Paths,
    fitting_paths,
    rank_counts,
    rank_rates,
    tree_acceptance,
    tree_from_option,
)
from foretoken.trainable.root_states import LastStates, RootStates, drafting
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.grow import MEDUSA_63, Propose, expand, widths_of
from foretoken.trees.join import assemble
from foretoken.trees.plan import AUTO, PAPER, TreePlan


class Heads(Trained):
    """A module of `num_heads` heads; head i, from 0, predicts the token i + 1 places after the
    root."""

    by_reach = True

    def head_states(self, lesson: Lesson, places: Tensor) -> Tensor:
        """Each head's states [B, S, H, D] at places [B, S] of a text, those before the roots."""
        raise NotImplementedError

    def root_states(self, access: Access) -> RootStates:
        """What keeps, while serving, the states that the heads read."""
        return LastStates()

    def language_model_heads(self) -> list[Tensor]:
        """The heads' language-model matrices [V, D] and biases [V], or none where they share the
        target's."""
        return []

    def of_vocabulary(self) -> list[Tensor]:
        return [*super().of_vocabulary(), *self.language_model_heads()]

    def copy_from(self, target: VocabularyLayers) -> None:
        with torch.no_grad():
            for weight in (each for each in self.language_model_heads() if each.ndim > 1):
                weight.copy_(weight_of(target, self.facts.hidden_size, weight))

    def logits(self, states: Tensor, head: Any) -> Tensor:
        """[..., H, D] -> [..., H, V]; head: the target's, unless the heads have their own."""
        shared: Tensor = head(states)
        return shared

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        places = lesson.places_to_draft(self.shape["num_heads"])  # most of a row is prompts
        computed = self.head_states(lesson, places)
        states = computed.new_zeros(*lesson.tokens.shape, *computed.shape[2:])
        states = states.scatter(1, places[..., None, None].expand_as(computed), computed)
        return heads_loss(
            lesson,
            states,
            lambda x: self.logits(x, lesson.head),
            [*self.language_model_heads(), *lesson.head_parameters],
            objective,
        )

    def ranks(self, lesson: Lesson) -> Tensor:
        """[B, T, H], as `ranks_at_roots` has it."""
        every = torch.arange(lesson.tokens.shape[1], device=lesson.tokens.device)
        states = self.head_states(lesson, every.expand_as(lesson.tokens))
        return ranks_at_roots(lesson, states, lambda x, _: self.logits(x, lesson.head))

    def count_held_out(self, lesson: Lesson) -> Tensor:
        return rank_counts(self.ranks(lesson), lesson.max_nodes)

    def note_counts(self, counts: Tensor) -> None:
        self.notes["rates"] = rank_rates(counts)


@dataclass(eq=False)
class HeadTree(BaseDrafter):
    """model: a checkpoint's folder, hub id or bundled name; tree: "paper" (Medusa's 63
    nodes), "auto" (planned for measured costs, at most the likeliest `tree_nodes` of these, which
    are drafted where no costs are known), "planned" (of `tree_nodes` nodes, for the rates that the
    checkpoint was measured at) or rank paths; tree_nodes: 63 by default, not with rank paths;
    num_speculative_tokens: fewer levels than the checkpoint has heads."""

    model: Any = None
    tree: str | Seq[Seq[int]] = AUTO
    tree_nodes: int | None = None
    num_speculative_tokens: int | None = None

    module: ClassVar[type[Heads]]
    wants = Wants("bc", (-1,))
    trees = True

    def __post_init__(self) -> None:
        check_range(1, MOST_NODES, tree_nodes=self.tree_nodes)
        if self.tree_nodes is not None and not isinstance(self.tree, str):
            raise ForetokenError(
                f"tree_nodes is {self.tree_nodes} and tree lists its nodes itself; leave one of "
                "them out."
            )
        self._most = len(MEDUSA_63) if self.tree_nodes is None else self.tree_nodes
        if self.tree in (AUTO, PAPER) and self._most > len(MEDUSA_63):
            raise ForetokenError(
                f"tree_nodes is {self.tree_nodes} and the paper's tree, of which tree "
                f"{self.tree!r} is a part, has {len(MEDUSA_63)} nodes; set tree to 'planned' for a "
                "larger one."
            )
        self.module.check_source(self.model)

    def bind(self, access: Access) -> None:
        self._heads: Any = loaded(self.module, self.model, access)
        self._access, self._states = access, self._heads.root_states(access)
        self.wants = replace(self.wants, last=self._states.last)
        self._given = self.paths(self._heads)
        ranks = 1 + max((max(path) for path in self._given), default=0)
        depth = max(map(len, self._given), default=0)
        self._planner = TreePlanner(RATES[:ranks], len(self._given), depth, self.planned)
        if self.tree == AUTO:
            self.shared = self._planner

    def price(self, measure: Callable[[Mapping[str, Drafter]], CostModel]) -> None:
        if self.tree == AUTO:
            self._planner.price(measure, self, self.draft_cost)

    def draft_cost(self, timed: DraftCost) -> DraftCost:
        """A plan's cost, of the timed drafts': the same for heads that all run at once."""
        return whole(timed)

    @property
    def nodes(self) -> int:
        return len(self._given)

    def planned(self, plan: TreePlan) -> Paths:
        """The paths of a tree that was planned while serving."""
        return tuple(plan.paths)

    def paths(self, heads: Heads, training: bool = False) -> Paths:
        """The tree that is drafted with these heads, where none is planned while serving; in
        training the paper's as long as the rates that a tree is planned by aren't counted."""
        rates = heads.notes.get("rates")
        unknown = training and self.tree == PLANNED and not rates
        paths = tree_from_option(PAPER if unknown else self.tree, self._most, rates)
        count = heads.shape["num_heads"]
        levels = draft_depth(
            self.num_speculative_tokens, count, f"the checkpoint has {count} heads"
        )
        return fitting_paths(paths, levels, heads.facts.vocab_size)

    def acceptance(self, heads: Heads, lesson: Lesson) -> Tensor:
        """[B, T, depth] whether a step whose root is there accepts more than n places."""
        return tree_acceptance(
            heads.ranks(lesson), lesson.max_nodes, self.paths(heads, training=True)
        )

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        paths = self._planner.tree(len(sequences), self._given)
        if not paths:
            return assemble([], len(sequences), self._access.device)
        rows, states = drafting(self._states, sequences, budgets)
        if states is None:
            return assemble([], len(sequences), self._access.device)
        roots = torch.tensor([sequences[row].tokens[-1] for row in rows], device=states.device)
        tree = self.build_tree(paths, states, roots, [budgets[row] for row in rows])
        return assemble([(rows, tree)], len(sequences), self._access.device)

    def build_tree(
        self, paths: Paths, states: Tensor, roots: Tensor, budgets: Seq[int]
    ) -> DraftTree:
        """The tree of these rank paths for each state [B, D] and the root [B] that was read from
        it."""
        raise NotImplementedError

    def begin(self, sequence: Sequence) -> None:
        self._states.begin(sequence)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self._states.observe(sequences, steps)
        self._planner.observe(steps)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self._states.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._states.end(sequence)


class GrownHeadTree(HeadTree):
    """A `HeadTree` whose heads read what was drafted before them: it grows level by level, one head
    for each level."""

    def paths(self, heads: Heads, training: bool = False) -> Paths:
        """The tree's paths level by level, in the order of `expand`."""
        paths = tuple(sorted(super().paths(heads, training), key=lambda path: (len(path), path)))
        widths_of(paths)  # raises for a tree that can't be grown
        return paths

    def draft_cost(self, timed: DraftCost) -> DraftCost:
        """Each level is a pass of its head; the timed drafts have one level."""
        return by_level(1)(timed)

    def build_tree(
        self, paths: Paths, states: Tensor, roots: Tensor, budgets: Seq[int]
    ) -> DraftTree:
        ask = self.ask(states, roots)
        return expand(ask, widths_of(paths), budgets, self._access.device)

    def ask(self, states: Tensor, roots: Tensor) -> Propose:
        """What gives the distributions after each frontier in turn, for such states [B, D] and
        roots [B]."""
        raise NotImplementedError
