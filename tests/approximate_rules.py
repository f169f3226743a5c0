"""Approximate rules in strict and loose settings, and one step of them on given distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foretoken import SamplingParams
from foretoken.draws import GreedyDraws
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.registry import build_verifier, verifier_names
from foretoken.testing import (
    Pair,
    joint_distribution,
)
from foretoken.tree import DraftTree, chains
from foretoken.verify.contrast import Contrast
from foretoken.verify.distance import Distance
from foretoken.verify.lenience import Lenience
from foretoken.verify.relaxed import Relaxed
from foretoken.verify.rollback import Rollback
from foretoken.verify.rollback_run import RollbackRun
from foretoken.verify.top_beta import TopBeta
from foretoken.verify.typical import Typical

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)
STRICT: list[Verifier] = [
    TopBeta(beta=1, tau=math.inf),
    TopBeta(beta=9, tau=0),
    Relaxed(top_k=1, delta=1),
    Relaxed(top_k=9, delta=0),
    Distance(epsilon=0),
    Rollback(alpha=0),
    RollbackRun(mismatches=1),
    Lenience(1.0),
    Typical(),
    Typical(epsilon=1, delta=0),
    Contrast(),
    Contrast(alpha=0, tau=0),
]
"""Settings in which a rule is greedy decoding at temperature 0."""
LOOSE: list[Verifier] = [
    TopBeta(beta=40, tau=9),
    Relaxed(top_k=40, delta=0.99),
    Distance(epsilon=40),
    Distance(epsilon=0, minimum_block=3),
    Rollback(alpha=9),
    RollbackRun(mismatches=3),
    Lenience(0.01),
]


def scored(
    distributions: Any, temperature: float = 0, dtype: torch.dtype = torch.float64
) -> Scores:
    """Scores of a target whose probabilities [B][S][V] are given."""
    logits = torch.tensor(distributions, dtype=dtype).log()
    probs = (logits / (temperature or 1)).softmax(-1)
    if temperature == 0:
        probs = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
    return Scores(logits, probs, torch.zeros(logits.shape[:2], dtype=torch.bool))


def written(verdict: Verdict, trees: DraftTree) -> list[tuple[list[int], int]]:
    """For each row the tokens written, and how many of them strayed."""
    assert verdict.strayed is not None
    found = []
    for b, count in enumerate(verdict.lengths.tolist()):
        tokens = [int(trees.tokens[b, slot - 1]) for slot in verdict.path[b, :count]]
        found.append(([*tokens, int(verdict.token[b])], int(verdict.strayed[b])))
    return found


def greedy_chain(rule: Verifier, distributions: Any, draft: list[int]) -> tuple[list[int], int]:
    """What a greedy step writes for one chain."""
    trees = chains([draft], CPU)
    [found] = written(rule(trees, scored([distributions]), GreedyDraws()), trees)
    return found


EVEN = [0.4, 0.3, 0.2, 0.1]


def everything() -> list[Verifier]:
    """Every approximate rule that the package finds, as it comes."""
    rules = [build_verifier(name) for name in verifier_names()]
    return [rule for rule in rules if not rule.exact]


def first_distribution(pair: Pair, rule: Verifier, draft: Callable[[Pair], Any]) -> Tensor:
    """The distribution of the first token when one was drafted, by enumeration."""
    distribution = joint_distribution(
        pair.target, lambda: draft(pair), rule, [0, 1, 0], SamplingParams(), 1, budget=1
    )
    chances = [distribution.get((token,), 0.0) for token in range(pair.target.vocab_size)]
    return torch.tensor(chances, dtype=torch.float64)
