"""Tables of p and q to prove acceptance rules on; the exact rules with the drafts they take."""

from __future__ import annotations

import torch
from torch import Tensor

from foretoken.draws import KeyedDraws, stream_key
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.testing.rules import Shape, contexts, own_distribution, rule_distribution
from foretoken.tree import DraftTree, Kind
from foretoken.verify.block import Block
from foretoken.verify.gumbel import Gumbel
from foretoken.verify.k_seq import KSeq
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.optimal_transport import OptimalTransport
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.traversal import Traversal

CPU = torch.device("cpu")
PAIRS = 25
CHOSEN, DRAWN, REST, AUX = (Kind.CHOSEN, Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT, Kind.AUXILIARY)


def distributions(random: torch.Generator, *shape: int) -> Tensor:
    """Random distributions of all sorts: even, steep, with zeros, one-hot."""
    steep = torch.tensor([0.5, 1.0, 1.0, 1.5, 2.0, 50.0], dtype=torch.float64)
    scale = steep[torch.randint(6, (*shape[:-1], 1), generator=random)]
    logits = torch.randn(shape, generator=random, dtype=torch.float64) * scale
    kept = torch.rand(shape, generator=random) < 0.9
    kept |= logits == logits.amax(-1, keepdim=True)
    return logits.masked_fill(~kept, -torch.inf).softmax(-1)


def tables(vocab: int, depth: int, pairs: int = PAIRS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """[P, C, V] pairs of distributions: unrelated ones, equal ones, close ones, disjoint ones,
    one-hot."""
    random = torch.Generator().manual_seed(1000 * vocab + 10 * depth + seed)
    size = contexts(vocab, depth)
    p, q = (distributions(random, pairs, size, vocab) for _ in range(2))
    q[0::10] = p[0::10]
    q[1::5] = 0.7 * p[1::5] + 0.3 * q[1::5]
    first = torch.arange(vocab) < max(1, vocab // 2)
    p[2::25] = torch.where(first, 0.0, p[2::25] + 0.1)
    q[2::25] = torch.where(first, q[2::25] + 0.1, 0.0)
    p[3::25] = torch.nn.functional.one_hot(p[3::25].argmax(-1), vocab).double()
    q[4::25] = torch.nn.functional.one_hot(q[4::25].argmax(-1), vocab).double()
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)


def context_free(vocab: int, depth: int, pairs: int = PAIRS) -> tuple[Tensor, Tensor]:
    """The same tables whatever stands before."""
    p, q = tables(vocab, 0, pairs)
    size = contexts(vocab, depth)
    return p.expand(-1, size, -1).contiguous(), q.expand(-1, size, -1).contiguous()


def off(rule: Verifier, shape: Shape, vocab: int, pairs: int = PAIRS) -> float:
    """How far the distribution of `rule` is from the target's at any text of any pair."""
    p, q = tables(vocab, shape.depth, pairs)
    return float(
        (rule_distribution(rule, shape, p, q).distribution - own_distribution(p, shape.depth + 1))
        .abs()
        .max()
    )


TREE_KINDS = [CHOSEN, DRAWN, REST]
CHAINS = [((0,), 5), ((0, 1), 4), ((0, 1, 2), 3), ((0, 1, 2, 3), 2), ((0, 1, 2, 3), 3)]
TREES = [
    ((0, 0), 3),
    ((0, 0, 0), 3),
    ((0, 0, 1), 3),
    ((0, 0, 1, 2), 2),
    ((0, 1, 1, 1, 2), 2),
    ((0, 0, 0, 1, 2), 3),
    ((0, 0, 1, 1, 2, 3, 3), 2),
]
PAIRED = [((0, 0), 3), ((0, 0, 1), 3), ((0, 0, 1, 2), 2), ((0, 0, 1, 1, 2), 2)]
"""Smaller ones, for rules that test or ask more than they use."""
TAKES: list[tuple[Verifier, list[Kind], list[tuple[tuple[int, ...], int]]]] = [
    (Speculative(), [CHOSEN, DRAWN], CHAINS),
    (TargetOnly(), [CHOSEN], CHAINS[:3] + TREES[:4]),
    (Block(), [CHOSEN, DRAWN, REST], CHAINS),
    (MultiCandidate(), [CHOSEN, DRAWN, REST], CHAINS + TREES),
    (Traversal(), [CHOSEN, DRAWN, REST], CHAINS + TREES),
    (KSeq(), [DRAWN], CHAINS + PAIRED + [((0, 0, 0), 3), ((0, 0, 0, 0), 2)]),
    (OptimalTransport(), [DRAWN], CHAINS[1:4] + PAIRED + [((0, 0, 0), 3)]),
    (Gumbel(), [CHOSEN, DRAWN, REST], CHAINS[:3] + TREES[:4]),
]
MIXED = [
    Shape((0, 0, 0), (CHOSEN, DRAWN, REST)),
    Shape((0, 0, 0), (REST, CHOSEN, REST)),
    Shape((0, 0, 0), (DRAWN, AUX, DRAWN)),
    Shape((0, 0, 1, 2, 2), (AUX, CHOSEN, DRAWN, REST, REST)),
    Shape((0, 0, 1, 1), (DRAWN, CHOSEN, CHOSEN, DRAWN)),
]


def verdict(rule: Verifier, trees: DraftTree, probs: Tensor, seeds: list[int]) -> Verdict:
    own = rule.draws or KeyedDraws
    draws = own([stream_key(seed, 0) for seed in seeds], [9] * len(seeds), CPU)
    return rule(trees, Scores(probs * torch.nan, probs, probs[..., 0] < 0), draws)


RULES: list[Verifier] = [rule for rule, _, _ in TAKES]
