"""Trees of candidates and prompt tokens: what to draft now, and what to ask for the next draft.

Source: Chen et al. 2024 (Parallel Prompt Decoding), section 4 (dynamic sparse trees). What prompt
tokens after the accepted node say are the next step's candidates, so a step whose last node had i
of them drafts i places: its state. A tree of a number of nodes is shared out: candidates are the
likeliest paths; a prompt token is worth how likely its node is to be the last one, times what one
place more brings the next step. How many of the nodes are candidates is searched for the most
tokens a step, on average over the states that steps then come to. Departure: each budget has trees
of its own, where theirs are planned for one size.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from foretoken.trainable.head_losses import Paths, plan

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
        taken: tuple[int, ...] = ()
        for rank in ranks:
            if (*taken, rank) not in self.slots:
                break
            taken = (*taken, rank)
        return len(taken), self.slots[taken]


class PromptTrees:
    """The trees for rates[i][r], how often the guess of rank r of prompt token i is right."""

    def __init__(self, rates: Seq[Seq[float]], most: int) -> None:
        """most: nodes of the largest tree."""
        self._states = range(len(rates) + 1)
        self._paths = [plan(rates[:state], most) for state in self._states]
        self._weights = [[_weight(path, rates) for path in paths] for paths in self._paths]
        self._made: dict[int, list[PromptTree]] = {}

    def of(self, state: int, nodes: int) -> PromptTree:
        """The tree of at most so many nodes where so many places were guessed."""
        if nodes not in self._made:
            splits = [self._trees(nodes, candidates) for candidates in range(nodes + 1)]
            self._made[nodes] = max(splits, key=self._tokens)
        return self._made[nodes][state]

    def _trees(self, nodes: int, candidates: int) -> list[PromptTree]:
        """Each state's tree with at most so many candidates, the others prompt tokens."""
        brings = [sum(weights[:candidates]) for weights in self._weights]
        more = [b - a for a, b in pairwise(brings)]
        more = [min(more[: i + 1]) for i in range(len(more))]  # the first before the second
        trees = []
        for state in self._states:
            paths = self._paths[state][:candidates]
            worth = [
                (-end * gain, slot)
                for slot, end in enumerate(self._ends(state, paths))
                for gain in more
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
        """Tokens accepted in so many steps that the first state hardly counts."""
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
        brings = (sum(w[: len(t.paths)]) for w, t in zip(self._weights, trees, strict=True))
        return sum(visit * gain for visit, gain in zip(visits, brings, strict=True))


def _weight(path: Seq[int], rates: Seq[Seq[float]]) -> float:
    weight = 1.0
    for place, rank in enumerate(path):
        weight *= rates[place][rank]
    return weight
