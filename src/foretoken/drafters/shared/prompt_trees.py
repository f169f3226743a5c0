"""Trees of candidates for this step, and of prompt tokens that guess the next step's candidates.

Source: Chen et al. 2024 (Parallel Prompt Decoding), section 4 (dynamic sparse trees). The
predictions at the prompt tokens after the last accepted node are the next step's candidates, so
after a node with i of them the next step drafts i places: that is the step's state. The nodes of a
tree are shared out: candidates are the likeliest paths; a prompt token is worth the probability
that its node is the last accepted one, times the gain of one more place in the next step. The
number of candidates is the one that gives the most tokens a step, on average over the states that
steps then reach. Departure: trees are planned for each budget, where the paper plans them for one
size; of budgets from 64 on only some are, and not every number of candidates is tried.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from foretoken.trainable.rank_trees import Paths, plan_tree

_ROUNDS = 30  # steps that a plan looks ahead
_BITS = 6  # of a budget, the highest, that count: planning happens while others decode


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
        size = self.planned(nodes)
        if size not in self._made:
            candidates = range(0, size + 1, _grain(size))
            self._made[size] = max((self._trees(size, n) for n in candidates), key=self._tokens)
        return self._made[size][state]

    def planned(self, nodes: int) -> int:
        """The budget, at most this one, whose trees serve it."""
        return nodes - nodes % _grain(nodes)

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
        moves = [self._moves(state, tree) for state, tree in enumerate(trees)]
        shares = [1.0, *[0.0] * (len(trees) - 1)]
        visits = shares
        for _ in range(_ROUNDS):
            shares = [
                sum(share * move[state] for share, move in zip(shares, moves, strict=True))
                for state in self._states
            ]
            visits = [so_far + share for so_far, share in zip(visits, shares, strict=True)]
        accepted = (sum(w[: len(t.paths)]) for w, t in zip(self._weights, trees, strict=True))
        return sum(visit * gain for visit, gain in zip(visits, accepted, strict=True))

    def _moves(self, state: int, tree: PromptTree) -> list[float]:
        """How likely each state is the next one after a step of this one."""
        following = [0.0] * len(self._states)
        for chance, prompts in zip(self._ends(state, tree.paths), tree.prompts, strict=True):
            following[prompts] += chance
        return following


def _grain(nodes: int) -> int:
    """The step from one number of nodes that counts to the next."""
    return 1 << max(0, nodes.bit_length() - _BITS)


def _weight(path: Seq[int], rates: Seq[Seq[float]]) -> float:
    weight = 1.0
    for place, rank in enumerate(path):
        weight *= rates[place][rank]
    return weight
