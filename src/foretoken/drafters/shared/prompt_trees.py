"""Trees of candidates for this step, and of prompt tokens that guess the next step's candidates.

Source: Chen et al. 2024 (Parallel Prompt Decoding), section 4 (dynamic sparse trees). The
predictions at the prompt tokens after the last accepted node are the next step's candidates, so
after a node with i of them the next step drafts i places: that is the step's state. The nodes of a
tree are shared out: candidates are the likeliest paths; a prompt token is worth the probability
that its node is the last accepted one, times the gain of one more place in the next step. The
number of candidates is the one that gives the most tokens a step, on average over the states that
steps then reach. Departure: trees are
planned for each budget, where the paper plans them for one size.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from foretoken.trainable.rank_trees import Paths, plan_tree

_ROUNDS = 30  # steps that a plan looks ahead


@dataclass(frozen=True)
class PromptTree:
    """paths: the candidates as rank paths, parents first; prompts: how many prompt tokens stand
    after the root and after each candidate."""

    paths: Paths
    prompts: tuple[int, ...]

    @cached_property
    def slots(self) -> dict[tuple[int, ...], int]:
        return {path: slot for slot, path in enumerate(((), *self.paths))}

    def follow(self, ranks: Seq[int]) -> tuple[int, int]:
        """How many candidates are accepted, and the last one's slot, where the text's tokens have
        these ranks."""
        path: tuple[int, ...] = ()
        for rank in ranks:
            if (*path, rank) not in self.slots:
                break
            path = (*path, rank)
        return len(path), self.slots[path]


class PromptTrees:
    """The trees for rates[i][r], how often the guess of rank r of prompt token i is right."""

    def __init__(self, rates: Seq[Seq[float]], most: int) -> None:
        """most: nodes of the largest tree."""
        self._states = range(len(rates) + 1)
        self._paths = [plan_tree(rates[:state], most) for state in self._states]
        self._weights = [[_weight(path, rates) for path in paths] for paths in self._paths]
        self._made: dict[int, list[PromptTree]] = {}

    def of(self, state: int, nodes: int) -> PromptTree:
        """The tree of at most `nodes` nodes for a state: the number of places that were guessed."""
        if nodes not in self._made:
            splits = [self._trees(nodes, candidates) for candidates in range(nodes + 1)]
            self._made[nodes] = max(splits, key=self._tokens)
        return self._made[nodes][state]

    def _trees(self, nodes: int, candidates: int) -> list[PromptTree]:
        """Each state's tree with at most `candidates` candidates; other nodes are prompt tokens."""
        accepted = [sum(weights[:candidates]) for weights in self._weights]  # expected, by state
        gains = [b - a for a, b in pairwise(accepted)]
        gains = [min(gains[: i + 1]) for i in range(len(gains))]  # the first before the second
        trees = []
        for state in self._states:
            paths = self._paths[state][:candidates]
            worth = [
                (-end * gain, slot)
                for slot, end in enumerate(self._ends(state, paths))
                for gain in gains
                if end * gain > 0
            ]
            prompts = [0] * (len(paths) + 1)
            for _, slot in sorted(worth)[: nodes - len(paths)]:
                prompts[slot] += 1
            trees.append(PromptTree(paths, tuple(prompts)))
        return trees

    def _ends(self, state: int, paths: Paths) -> list[float]:
        """How likely the root, and each candidate, is the last node that is accepted."""
        slots = {path: slot for slot, path in enumerate(((), *paths))}
        ends = [1.0, *self._weights[state][: len(paths)]]
        for path, weight in zip(paths, self._weights[state], strict=False):
            ends[slots[path[:-1]]] -= weight
        return ends

    def _tokens(self, trees: Seq[PromptTree]) -> float:
        """Tokens accepted in `_ROUNDS` steps, enough for the first state to count for little."""
        ends = [self._ends(state, tree.paths) for state, tree in enumerate(trees)]
        shares = [1.0, *[0.0] * (len(trees) - 1)]
        visits = shares
        for _ in range(_ROUNDS):
            following = [0.0] * len(trees)
            for share, tree, chances in zip(shares, trees, ends, strict=True):
                for chance, prompts in zip(chances, tree.prompts, strict=True):
                    following[prompts] += share * chance
            shares = following
            visits = [so_far + share for so_far, share in zip(visits, shares, strict=True)]
        accepted = (sum(w[: len(t.paths)]) for w, t in zip(self._weights, trees, strict=True))
        return sum(visit * gain for visit, gain in zip(visits, accepted, strict=True))


def _weight(path: Seq[int], rates: Seq[Seq[float]]) -> float:
    weight = 1.0
    for place, rank in enumerate(path):
        weight *= rates[place][rank]
    return weight
