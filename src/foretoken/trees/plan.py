"""Which tree to draft: the best one for measured acceptance rates, and for a measured cost curve.

Source: Chen et al. 2024 (Sequoia), section 4.1 (positional acceptance: the b-th child of an
accepted node is the accepted one with probability p_b, wherever it stands), section 4.1.2 and
appendix D (dynamic programme), section 4.3 (tree size and depth for the hardware). Then a node is
accepted with the product of the p_b along its path, and the sum over a tree's nodes, root included,
is the number of tokens that a step is expected to yield. Departure: at most (not exactly) this many
nodes, so that a child which is never accepted is left out.

A tree without tokens is the list of its nodes' rank paths: (0,) is the root's first child, (0, 2)
that one's third. Paths are listed level by level, a parent's children in order of rank.

Legend: M nodes (root not counted), L levels, K most children of one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays

AUTO, PAPER = "auto", "paper"
"""A drafter's option `tree`: planned for measured costs; as its paper has it."""

Paths = list[tuple[int, ...]]
"""Rank paths of a tree's nodes."""

_COUNTS = "count of accepted siblings"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TreePlan:
    """A tree as rank paths, and the tokens that a step with it is expected to yield (at least 1).

    tokens_per_second: set where the tree was chosen for a cost curve, else 0.
    """

    paths: Paths
    tokens: float
    tokens_per_second: float = 0.0

    @property
    def depth(self) -> int:
        return max(map(len, self.paths), default=0)


def acceptance_vector(accepted: Seq[float], offered: Seq[float]) -> list[float]:
    """p_b from counts: how often the b-th child was accepted, of the times that there was one.

    offered[b] counts the accepted nodes (roots included) that had at least b + 1 children. A rank
    that was never offered gets 0. Ranks are counted over different nodes, so their shares may sum
    to more than 1; then all are scaled down.
    """
    if len(accepted) != len(offered) or any(
        not 0 <= a <= n for a, n in zip(accepted, offered, strict=True)
    ):
        raise ForetokenError(
            f"Counts by sibling rank must be equally many, with 0 <= accepted <= offered; given "
            f"accepted {list(accepted)} and offered {list(offered)}."
        )
    shares = [a / n if n else 0.0 for a, n in zip(accepted, offered, strict=True)]
    return [share / max(1.0, sum(shares)) for share in shares]


class SiblingCounts:
    """Acceptance rates by sibling rank, counted while serving; the counts can be saved and loaded.

    The given rates count as `weight` earlier drafts.
    """

    def __init__(self, rates: Seq[float], weight: int = 16) -> None:
        self._given, self._weight = list(_checked(rates)), weight
        self.replaced = 0  # how often the counts were reset or loaded
        self.reset()

    def reset(self) -> None:
        """Back to the given rates."""
        self._accepted = [0.0] * len(self._given)
        self._offered = [0.0] * len(self._given)
        self.steps = 0
        self.replaced += 1

    def halve(self) -> None:
        """Let what was counted weigh half as much, so that later drafts count more."""
        self._accepted = [n / 2 for n in self._accepted]
        self._offered = [n / 2 for n in self._offered]

    def add(self, parents: Seq[int], path: Seq[int]) -> None:
        """One step: the slot of each node's parent (0 is the root, i + 1 node i; negative for
        padding), and the slots of the accepted nodes."""
        self.steps += 1
        children: dict[int, list[int]] = {}
        for slot, parent in enumerate(parents, 1):
            children.setdefault(parent, []).append(slot)
        for node, child in zip((0, *path), (*path, None), strict=True):
            for rank, sibling in enumerate(children.get(node, [])[: len(self._given)]):
                self._offered[rank] += 1
                self._accepted[rank] += sibling == child

    def rates(self) -> list[float]:
        return acceptance_vector(
            [self._weight * p + n for p, n in zip(self._given, self._accepted, strict=True)],
            [self._weight + n for n in self._offered],
        )

    def save(self, path: str | Path) -> None:
        arrays = {"accepted": np.array(self._accepted), "offered": np.array(self._offered)}
        write_arrays(path, _COUNTS, {"sibling ranks": len(self._given)}, arrays)

    def load(self, path: str | Path) -> None:
        """Raises `ForetokenError` for a file that is damaged or counts other ranks."""
        made_for = {"sibling ranks": len(self._given)}
        arrays = read_arrays(path, _COUNTS, made_for, ("accepted", "offered"))
        self._accepted, self._offered = arrays["accepted"].tolist(), arrays["offered"].tolist()
        self.replaced += 1


def expected_tokens(paths: Seq[Seq[int]], acceptance: Seq[float]) -> float:
    """The tokens that a step with this tree yields on average, the bonus token included.

    Ranks after the vector's end are never accepted.
    """
    share = dict(enumerate(acceptance))
    return 1.0 + sum(prod(share.get(rank, 0.0) for rank in path) for path in paths)


def best_tree(acceptance: Seq[float], nodes: int, depth: int) -> TreePlan:
    """The tree of at most `nodes` nodes and `depth` levels that yields most tokens a step."""
    table = TreeTable(acceptance, nodes, depth)
    return TreePlan(table.paths(nodes, depth), float(table.worth[depth, nodes]))


def fastest_tree(
    acceptance: Seq[float],
    target_ms: Mapping[int, float],
    draft_ms: float,
    *,
    nodes: int = 128,
    depth: int = 16,
) -> TreePlan:
    """The tree with most expected tokens a second, as `TreeTable.fastest` has it.

    draft_ms: time that one level of drafting takes.
    """
    return TreeTable(acceptance, nodes, depth).fastest(target_ms, draft_ms)


def _checked(acceptance: Seq[float]) -> Seq[float]:
    if not acceptance or min(acceptance) < 0 or sum(acceptance) > 1 + 1e-9:
        raise ForetokenError(
            f"The acceptance vector is {list(acceptance)}; it must hold a probability for each "
            "sibling rank, at least one and at most 1 together."
        )
    return acceptance


class TreeTable:
    """The dynamic programme: the best trees of every size for these rates by sibling rank.

    worth[l, m]: the best value of a node with at most m nodes in at most l levels below it:
    itself and what its children from the first on add. The children from the b-th on add

        rest[b, m] = max(0, max over y of p_b · worth[l - 1, y - 1] + rest[b + 1, m - y]),

    where the b-th child's own tree has y nodes; taken[l, b, m] is that y, 0 to have no b-th child.
    """

    def __init__(self, acceptance: Seq[float], nodes: int, depth: int) -> None:
        acceptance = _checked(acceptance)
        self._ranks = min(len(acceptance), nodes)
        self.worth: Array = np.ones((depth + 1, nodes + 1))
        self._taken = np.zeros((depth + 1, self._ranks, nodes + 1), dtype=np.int64)
        sizes = np.arange(nodes + 1)
        remaining = sizes[:, None] - sizes  # [m, y]: nodes for the later children
        for level in range(1, depth + 1):
            rest = np.zeros(nodes + 1)
            for rank in reversed(range(self._ranks)):
                child = np.concatenate(([0.0], acceptance[rank] * self.worth[level - 1, :-1]))
                gain = np.where(remaining >= 0, child + rest[remaining.clip(0)], -np.inf)
                gain[:, 0] = 0.0  # no child here, so none after it
                self._taken[level, rank] = gain.argmax(1)
                rest = gain.max(1)
            self.worth[level] = 1 + rest

    def fastest(
        self, target_ms: Mapping[int, float], draft_ms: float, call_ms: float = 0.0
    ) -> TreePlan:
        """The tree with most expected tokens a second; it is empty where plain decoding is fastest.

        target_ms: measured time of the target's pass by number of nodes (0 is plain decoding),
        linear between and level after the measured sizes; no pass is taken to be cheaper than a
        smaller one. draft_ms: time that one level of drafting takes; call_ms: time that any draft
        takes besides.
        """
        if 0 not in target_ms or min(target_ms.values()) <= 0 or min(draft_ms, call_ms) < 0:
            raise ForetokenError(
                "target_ms must hold positive times and one for 0 nodes, and draft_ms and call_ms "
                f"must not be negative; given {dict(target_ms)}, {draft_ms} and {call_ms}."
            )
        levels, nodes = (size - 1 for size in self.worth.shape)
        sizes = sorted(target_ms)
        passes = np.interp(np.arange(nodes + 1), sizes, [target_ms[size] for size in sizes])
        passes = np.maximum.accumulate(passes)  # else a larger tree might seem cheaper than this
        drafts = draft_ms * np.arange(levels + 1) + call_ms
        drafts[0] = 0.0
        speed = 1000 * self.worth / (passes + drafts[:, None])  # [L + 1, M + 1]
        best_depth, best_nodes = map(int, np.unravel_index(speed.argmax(), speed.shape))
        return TreePlan(
            self.paths(best_nodes, best_depth),
            float(self.worth[best_depth, best_nodes]),
            float(speed[best_depth, best_nodes]),
        )

    def paths(self, nodes: int, depth: int) -> Paths:
        """The rank paths of the best tree of this size, level by level."""
        chosen: Paths = []
        todo: list[tuple[tuple[int, ...], int, int]] = [((), nodes, depth)]
        while todo:
            path, budget, levels = todo.pop()
            for rank in range(self._ranks if levels else 0):
                own = int(self._taken[levels, rank, budget])
                if not own:
                    break
                chosen.append((*path, rank))
                todo.append((chosen[-1], own - 1, levels - 1))
                budget -= own
        return sorted(chosen, key=lambda path: (len(path), path))
