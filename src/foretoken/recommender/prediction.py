"""Predicts speedups from a few screened answers and the costs of the target's passes.

By the model of `bench.measure.simulate`, with what drafting took by the clock. Of a chain every
shorter length is predicted from the same answers, and the best over all cells is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from foretoken.bench.measure.costs import Costs
from foretoken.bench.measure.ideal import machine
from foretoken.bench.measure.simulate import (
    Drafting,
    Machine,
    measured_chain,
    measured_drafting,
    speedup,
)
from foretoken.bench.record import Measured
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.served import Cell

HOPELESS = 0.8
"""A predicted speedup below which a method isn't timed, if it is as bad in every cell."""

Screened = Mapping[float, tuple[Measured, Measured]]
"""Temperature -> the method's numbers and plain decoding's of the same prompts, one at a time."""


@dataclass(frozen=True)
class Prediction:
    """label: the candidate's, as it was screened. best: it with the draft length that is best.
    speedups: over plain decoding."""

    label: str
    best: Candidate
    speedups: Mapping[Cell, float]

    @property
    def mean(self) -> float:
        """The geometric mean over the cells."""
        return math.exp(sum(map(math.log, self.speedups.values())) / len(self.speedups))

    @property
    def hopeless(self) -> bool:
        return max(self.speedups.values()) < HOPELESS


def predict(
    candidate: Candidate, screened: Screened, costs: Costs, batch_sizes: Seq[int]
) -> Prediction:
    """The speedups in every cell of a screened temperature."""
    machines = {t: _machine(costs, *pair) for t, pair in screened.items()}

    def at(draftings: Mapping[float, Drafting]) -> dict[Cell, float]:
        return {
            Cell(size, t): speedup(drafting, machines[t], size)
            for t, drafting in draftings.items()
            for size in batch_sizes
        }

    chains = {t: measured_chain(own) for t, (own, _) in screened.items()}
    longest = min(0 if chain is None else len(chain.kept) for chain in chains.values())
    if not candidate.any_length or not longest:
        own_way = {t: measured_drafting(own) for t, (own, _) in screened.items()}
        return Prediction(candidate.label, candidate, at(own_way))
    lengths = [
        Prediction(
            candidate.label,
            candidate.of_length(length),
            at({t: chain.drafting(length) for t, chain in chains.items() if chain is not None}),
        )
        for length in range(1, longest + 1)
    ]
    return max(lengths, key=lambda one: one.mean)


def _machine(costs: Costs, own: Measured, plain: Measured) -> Machine:
    """Costs of passes as measured, and of a draft's as the clock had them in these answers."""
    base = machine(costs, "", plain)
    steps = measured_drafting(own)
    passes = steps.mean_nodes
    if steps.levels is not None:
        passes = steps.levels * (1 - steps.nodes.get(0.0, 0.0))
    if not passes:
        return base
    ms = own["ms_per_step"]["draft"] / passes
    return replace(base, draft=lambda batch, tokens: ms)


def most_promising(predictions: Seq[Prediction], many: int) -> list[Prediction]:
    """So many of them, and of these none that is hopeless but the best.

    The best in a cell is worth more than what is second everywhere: cells choose in turn.
    """
    chosen: list[Prediction] = []
    cells = sorted({cell for one in predictions for cell in one.speedups})
    while len(chosen) < min(many, len(predictions)):
        for cell in cells:
            rest = [one for one in predictions if one not in chosen and cell in one.speedups]
            if rest and len(chosen) < many:
                chosen.append(max(rest, key=lambda one: one.speedups[cell]))
    hopeful = [one for one in chosen if not one.hopeless]
    return hopeful or chosen[:1]
