"""Shared by drafters of trees: the tree that is fastest for this machine's measured costs.

A tree as large as its paper's pays where a pass over all its nodes costs little more than a pass
over one, as on a GPU. What a pass costs here is measured (`price`), how often the b-th child of an
accepted node is the accepted one is counted while serving, and from both the dynamic programme of
Chen et al. 2024 (Sequoia), sections 4.1 and 4.3, plans the tree with most expected tokens a second
for the number of sequences that run. It is never larger or deeper than the paper's.

A plan follows from past steps and from costs, never from a token of the draft. Since it depends on
the machine and on other requests, it shapes chosen drafts only: their texts don't depend on it.

Legend: M nodes (root not counted), L levels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Generic, TypeVar

from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.errors import ForetokenError, shown
from foretoken.protocols import Drafter, Step
from foretoken.trees.plan import AUTO, PAPER, SiblingCounts, TreePlan, TreeTable

LARGEST = 128
"""Nodes of the largest tree that is planned: thinking takes 0.05 ms a step, and grows with their
square."""

RATES = (0.6, 0.12, 0.06, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01, 0.01)
"""Acceptance by sibling rank assumed of a drafter before its drafts have been counted."""

_FIRST_PLAN, _LAST_PLAN = 16, 128  # steps from plan to plan: doubled from the first to the last
_HALVE = 512  # steps, after which counts weigh half: rates that are too low are tried again in time
_TRIAL = 8  # steps after a start and after that, in which one node is drafted where no tree pays
_WEIGHT = 4  # drafts that the first rates count as

_ONE_NODE = TreePlan([(0,)], 1.0)

_log = logging.getLogger(__name__)

T = TypeVar("T")


def check_tree(tree: str) -> None:
    """Raises `ForetokenError` for an option `tree` that names none."""
    if tree not in (AUTO, PAPER):
        raise ForetokenError(
            f"tree is {shown(tree)}; it must be 'auto' (planned for measured costs) or 'paper'."
        )


def parents_of(step: Step) -> list[int]:
    """The slot of each node's parent; -1 where the node can't be accepted."""
    valid = step.tree.valid[step.row].tolist()
    slots = step.tree.parent_slots[step.row].tolist()
    return [slot if real else -1 for slot, real in zip(slots, valid, strict=True)]


class TreePlanner(Generic[T]):
    """Plans a drafter's tree; what it has counted is a `Shared`.

    rates: by sibling rank, before anything is counted. nodes, depth: the most of a tree. build:
    makes of a plan what the drafter drafts by; an empty plan, where plain decoding is fastest, too.
    scored: how many nodes a pass has for each node of a plan.
    Without costs nothing is planned: before `price`, in a drafter that is a part of another, and of
    more than `LARGEST` nodes.
    """

    def __init__(
        self,
        rates: Seq[float],
        nodes: int,
        depth: int,
        build: Callable[[TreePlan], T],
        scored: int = 1,
    ) -> None:
        self._counts = SiblingCounts(rates, _WEIGHT)
        self._nodes, self._depth, self._build, self._scored = nodes, depth, build, scored
        self._costs: CostModel | None = None
        self._draft = DraftCost()
        self._restart()

    def _restart(self) -> None:
        self._steps, self._interval, self._next = 0, _FIRST_PLAN, _FIRST_PLAN
        self._trial = _TRIAL
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._table: TreeTable | None = None
        self._plans: dict[int, tuple[T, bool]] = {}  # by sequences; whether anything is drafted

    def price(
        self,
        measure: Callable[[Mapping[str, Drafter]], CostModel],
        drafter: Drafter,
        draft_cost: Callable[[DraftCost], DraftCost],
    ) -> None:
        """Plan by measured costs from now on, and by the first rates: what was drafted to measure
        doesn't count. draft_cost: of the cost of the drafter's timed drafts, that of a plan's."""
        if self._nodes > LARGEST:
            _log.warning(
                "Trees of more than %d nodes are not planned: %s drafts its %d nodes; set tree to "
                "'paper', or ask for fewer.",
                LARGEST,
                type(drafter).__name__,
                self._nodes,
            )
            return
        costs = measure({"tree": drafter})
        self._costs, self._draft = costs, draft_cost(costs.drafts["tree"])
        self.reset()

    def tree(self, sequences: int, paper: T) -> T:
        """What to draft by in this step, for so many sequences; `paper` where no costs are
        known."""
        if self._costs is None:
            return paper
        self._steps += 1
        if self._steps >= self._next:
            self._plan_again(sequences)
        tree, drafts = self._planned(sequences)
        if not drafts and self._trial:
            self._trial -= 1
            return self._build(_ONE_NODE)
        return tree

    def _planned(self, sequences: int) -> tuple[T, bool]:
        if sequences not in self._plans:
            assert self._costs is not None
            if self._table is None:
                self._table = TreeTable(self._counts.rates(), self._nodes, self._depth)
            passes = self._costs.passes(sequences, self._nodes * self._scored)[:: self._scored]
            call, level = self._draft.call * sequences, self._draft.level
            plan = self._table.fastest(dict(enumerate(passes)), level, call)
            self._plans[sequences] = self._build(plan), bool(plan.paths)
        return self._plans[sequences]

    def _plan_again(self, sequences: int) -> None:
        """Plan by the present counts. Where drafting is tried again it is soon judged."""
        _, drafted = self._planned(sequences)
        if self._steps // _HALVE > (self._steps - self._interval) // _HALVE:
            self._counts.halve()
            self._trial = _TRIAL
        self._forget_plans()
        again = self._planned(sequences)[1] and not drafted
        self._interval = _FIRST_PLAN if again else min(2 * self._interval, _LAST_PLAN)
        self._next = self._steps + self._interval

    def observe(self, steps: Seq[Step]) -> None:
        """Count what was accepted of the drafts. One that can't be accepted, where there was
        nothing to draft but auxiliary nodes, counts as a rejected child of the root."""
        if self._costs is None:
            return
        for step in steps:
            if step.drafted:
                parents = parents_of(step)
                self._counts.add(parents if max(parents) >= 0 else [0], step.path)

    def reset(self) -> None:
        """Back to the first rates."""
        self._counts.reset()
        self._restart()

    def save(self, path: str | Path) -> None:
        self._counts.save(path)

    def load(self, path: str | Path) -> None:
        """Raises `ForetokenError` for a file that is damaged or counts other ranks."""
        self._counts.load(path)
        self._restart()


def by_level(levels: int) -> Callable[[DraftCost], DraftCost]:
    """For `price`, of a drafter that runs a pass for each level, whose timed drafts had so many."""
    return lambda draft: DraftCost(level=draft(1, levels) / levels)


def whole(draft: DraftCost) -> DraftCost:
    """For `price`, of a drafter whose drafts cost the same whatever their depth."""
    return draft
