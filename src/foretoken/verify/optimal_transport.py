"""The best choice among K i.i.d. draws: an optimal transport, solved as a linear programme.

A plan gives, for each set s of tokens that K draws from q may show (which happens with probability
Q(s)), the probability w(s, y) that the token y of s is written. Its total is maximised under Σ_y
w(s, y) ≤ Q(s) and Σ_s w(s, y) ≤ p(y); if no draw is accepted, the token comes from what is left of
p. Source: Sun et al. 2023 (SpecTr), section 3, optimal transport with membership cost; only the set
matters, which makes the programme smaller than over V^K tuples. It is the reference that `k_seq` is
measured against, for tiny vocabularies: it solves one programme a place, on the host.

Legend: B sequences, N tree nodes, S = N + 1 slots, V vocabulary, K draws.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.tree import DraftTree, Kind
from foretoken.verify.shared.iid_trees import Choice, descend

_MAX_TUPLES = 4096  # of draws

Plan = dict[frozenset[int], dict[int, float]]
"""Set of drawn tokens -> token -> the probability to accept it, given the set."""


@dataclass(frozen=True)
class OptimalTransport(Verifier):
    """The exact rule for i.i.d. branches that accepts the most, by linear programming."""

    exact: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    sampling: ClassVar[bool] = True
    source: ClassVar[str] = "Sun et al. 2023 (SpecTr), §3"
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.INDEPENDENT, Kind.AUXILIARY})
    largest_vocab: ClassVar[int | None] = _MAX_TUPLES  # for one draw; several have more tuples

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        return descend(trees, scores, draws, _transport)


def _transport(choice: Choice) -> tuple[Tensor, Tensor]:
    """Row by row: the chance to accept each draw after those before it, and what is left of p."""
    chances, rests = (
        torch.zeros_like(choice.tokens, dtype=choice.distribution.dtype),
        choice.distribution.clone(),
    )
    distributions, proposals = choice.distribution.tolist(), choice.proposal.tolist()
    for row, open_ in enumerate(choice.open):
        places = open_.nonzero()[:, 0]
        if len(places):
            plan, rest = _solve(tuple(distributions[row]), tuple(proposals[row]), len(places))
            tokens = choice.tokens[row, places].tolist()
            chances[row, places] = chances.new_tensor(_in_turn(plan, tokens))
            rests[row] = rests.new_tensor(rest)
    return chances, rests


def _in_turn(plan: Plan, tokens: list[int]) -> list[float]:
    """The chance to accept each draw once those before it were rejected."""
    shares, left, chances = dict(plan[frozenset(tokens)]), 1.0, []
    for token in tokens:
        share = shares.pop(token, 0.0)  # a token's second draw has no share
        chances.append(min(1.0, share / left) if left > 0 else 0.0)
        left -= share
    return chances


@lru_cache(maxsize=16)  # an entry may have a megabyte, and distributions seldom come again
def _solve(p: tuple[float, ...], q: tuple[float, ...], count: int) -> tuple[Plan, list[float]]:
    """The best plan for `count` draws, and what it leaves of p."""
    if len(q) ** count > _MAX_TUPLES:
        raise ForetokenError(
            f"{count} draws from {len(q)} tokens are {len(q)}^{count} tuples, and the linear "
            f"programme takes at most {_MAX_TUPLES}; use the verifier 'k_seq'."
        )
    sets = _sets(q, count)
    pairs = [(place, token) for place, drawn in enumerate(sets) for token in sorted(drawn)]
    masses = _largest_plan(pairs, np.array(list(sets.values())), np.array(p))
    plan: Plan = {drawn: {} for drawn in sets}
    rest, shown = np.array(p), list(sets.items())
    for (place, token), mass in zip(pairs, masses, strict=True):
        drawn, probability = shown[place]
        plan[drawn][token] = mass / probability
        rest[token] -= mass
    rest = rest.clip(min=0)
    return plan, rest.tolist() if rest.sum() > 0 else list(p)


def _sets(q: tuple[float, ...], count: int) -> dict[frozenset[int], float]:
    """The probability of each set of tokens that `count` draws may show."""
    sets: dict[frozenset[int], float] = defaultdict(float)
    for tokens in product([token for token, share in enumerate(q) if share > 0], repeat=count):
        sets[frozenset(tokens)] += prod(q[token] for token in tokens)
    return {drawn: probability for drawn, probability in sets.items() if probability > 0}


def _largest_plan(
    pairs: list[tuple[int, int]], sets: np.ndarray, distribution: np.ndarray
) -> np.ndarray:
    """The mass at each (set, token): the largest in total that keeps both bounds."""
    linprog = imported("scipy.optimize", "bench", "Optimal transport needs").linprog
    csr_array = imported("scipy.sparse", "bench", "Optimal transport needs").csr_array
    column = np.arange(len(pairs))
    of_set, of_token = np.array(pairs).T
    rows = np.concatenate([of_set, of_token + len(sets)])
    entries = (np.ones(2 * len(pairs)), (rows, np.concatenate([column, column])))
    bounds = csr_array(entries, shape=(len(sets) + len(distribution), len(pairs)))
    solution = linprog(-np.ones(len(pairs)), A_ub=bounds, b_ub=np.concatenate([sets, distribution]))
    mass: np.ndarray = np.clip(solution.x, 0, None)
    # The solver keeps the bounds up to its tolerance; shrinking what exceeds them makes it exact.
    for group, most in ((of_set, sets), (of_token, distribution)):
        total = np.bincount(group, mass, len(most))
        mass *= np.minimum(1.0, most / np.where(total > 0, total, 1.0))[group]
    return mass
