"""Lossless rules, proved: every outcome of draft and rule is followed, on tables of p and q.

The distribution of the first γ + 1 tokens is the target's to 1e-12, for each rule, kind of node and
shape; rows of ragged batches are the same as alone; acceptance is what theory says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.draws import GreedyDraws, KeyedDraws, stream_key
from foretoken.errors import ForetokenError
from foretoken.protocols import Scores, Verdict, Verifier
from foretoken.testing import Drawn, Pair, serve
from foretoken.testing.rules import Shape, contexts, draft, own_distribution, rule_distribution
from foretoken.tree import DraftTree, Kind
from foretoken.verify import k_seq, optimal_transport, traversal
from foretoken.verify.block import Block
from foretoken.verify.greedy import Greedy
from foretoken.verify.gumbel import Gumbel, GumbelDraws
from foretoken.verify.k_seq import KSeq
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.optimal_transport import OptimalTransport
from foretoken.verify.shared import chains
from foretoken.verify.shared.residual import Offer, Residual
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.traversal import Traversal

CPU = torch.device("cpu")
PAIRS = 50
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
CELLS = [
    pytest.param(rule, kind, tree, vocab, id=f"{type(rule).__name__}-{kind.name}-{tree}-{vocab}")
    for rule, kinds, shapes in TAKES
    for kind in kinds
    for tree, vocab in shapes
]


@pytest.mark.parametrize(("rule", "kind", "parents", "vocab"), CELLS)
def test_the_distribution_is_the_targets(
    rule: Verifier, kind: Kind, parents: tuple[int, ...], vocab: int
) -> None:
    """50 pairs of tables a shape, to 1e-12."""
    assert off(rule, Shape.of(kind, *parents), vocab) <= 1e-12


MIXED = [
    Shape((0, 0, 0), (CHOSEN, DRAWN, REST)),
    Shape((0, 0, 0), (REST, CHOSEN, REST)),
    Shape((0, 0, 0), (DRAWN, AUX, DRAWN)),
    Shape((0, 0, 1, 2, 2), (AUX, CHOSEN, DRAWN, REST, REST)),
    Shape((0, 0, 1, 1), (DRAWN, CHOSEN, CHOSEN, DRAWN)),
]


@pytest.mark.parametrize("shape", MIXED)
@pytest.mark.parametrize("rule", [MultiCandidate(), Traversal()])
def test_siblings_of_several_kinds(rule: Verifier, shape: Shape) -> None:
    """Chosen, drawn and auxiliary siblings under one parent."""
    assert off(rule, shape, 3) <= 1e-12


@pytest.mark.parametrize(
    "kinds", [(CHOSEN, DRAWN, CHOSEN), (DRAWN, AUX, DRAWN), (REST, CHOSEN, AUX)]
)
@pytest.mark.parametrize("rule", [Block(), MultiCandidate(), Traversal()])
def test_chains_of_several_kinds(rule: Verifier, kinds: tuple[Kind, ...]) -> None:
    """A chain that is partly chosen, and one that an auxiliary node ends."""
    assert off(rule, Shape((0, 1, 2), kinds), 3) <= 1e-12


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(KSeq(), DRAWN), *((r, k) for r in (MultiCandidate(), Traversal()) for k in TREE_KINDS)],
)
def test_chains_agree_with_the_way_of_trees(rule: Verifier, kind: Kind) -> None:
    """With an auxiliary node beside it, a path takes the rule's loop in place of the chain form."""
    p, q = tables(3, 3)
    short, loop = (
        rule_distribution(rule, shape, p, q)
        for shape in (Shape.of(kind, 0, 1, 2), Shape((0, 1, 2, 0), (kind, kind, kind, AUX)))
    )
    assert (short.distribution - loop.distribution).abs().max() <= 1e-12
    assert (short.accepted - loop.accepted).abs().max() <= 1e-12


@pytest.mark.parametrize("rule", [KSeq(), OptimalTransport()])
def test_shared_prefixes_with_auxiliary_nodes(rule: Verifier) -> None:
    """Auxiliary nodes are no candidates."""
    assert off(rule, Shape((0, 0, 0, 1, 2), (DRAWN, AUX, DRAWN, DRAWN, AUX)), 2) <= 1e-12


@pytest.mark.parametrize("rule", [MultiCandidate(), Traversal(), Block(), KSeq()])
def test_single_precision_keeps_the_distribution(rule: Verifier) -> None:
    """In float32 the distribution is off by rounding only."""
    p, q = tables(3, 2)
    kind = DRAWN if isinstance(rule, KSeq) else REST
    shape = Shape.of(kind, *((0, 0, 1) if rule.trees else (0, 1)))
    found = rule_distribution(rule, shape, p.float(), q.float()).distribution
    assert (found - own_distribution(p, 3)).abs().max() < 1e-5


# --- mistakes that the enumeration must notice


def unpaid(patch: pytest.MonkeyPatch) -> None:
    """A rejection leaves the residual as it was."""
    patch.setattr(Residual, "reject", lambda self, offer: None)


def kept_token(patch: pytest.MonkeyPatch) -> None:
    """A rejected chosen token may be drawn again."""
    patch.setattr(Residual, "_remove", lambda self, token, chosen: None)


def whole_distribution(patch: pytest.MonkeyPatch) -> None:
    """Siblings without replacement are held for independent draws."""
    patch.setattr(Offer, "_thinned", False)


def leaf_rule(patch: pytest.MonkeyPatch) -> None:
    """Every prefix passes with the probability of a whole chain."""
    patch.setattr(chains, "_chances", lambda trees, probs, distributions, joint: joint[:, 1:])


def root_first(patch: pytest.MonkeyPatch) -> None:
    """Nodes are tried from the root on."""
    patch.setattr(traversal, "_test_order", lambda trees: trees.depths[:, 1:])


def one_draw(patch: pytest.MonkeyPatch) -> None:
    """The residual of one draw, for several."""
    patch.setattr(k_seq, "_any_accepted", lambda beta, count: beta)


def plain_rest(patch: pytest.MonkeyPatch) -> None:
    """The plan's rest is forgotten."""
    own = optimal_transport._solve
    patch.setattr(optimal_transport, "_solve", lambda p, q, count: (own(p, q, count)[0], list(p)))


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Verifier, Shape]] = {
    "unpaid": (unpaid, MultiCandidate(), Shape.of(DRAWN, 0, 0)),
    "kept token": (kept_token, MultiCandidate(), Shape.of(CHOSEN, 0, 0)),
    "whole distribution": (whole_distribution, MultiCandidate(), Shape.of(REST, 0, 0)),
    "whole distribution below": (whole_distribution, Traversal(), Shape.of(REST, 0, 0, 1, 2)),
    "leaf rule": (leaf_rule, Block(), Shape.of(DRAWN, 0, 1)),
    "root first": (root_first, Traversal(), Shape.of(DRAWN, 0, 0, 1)),
    "one draw": (one_draw, KSeq(), Shape.of(DRAWN, 0, 0)),
    "plain rest": (plain_rest, OptimalTransport(), Shape.of(DRAWN, 0, 0)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changes the distribution by more than 1e-3."""
    patch, rule, shape = MUTANTS[name]
    assert off(rule, shape, 3, 20) <= 1e-12
    patch(monkeypatch)
    assert off(rule, shape, 3, 20) > 1e-3


# --- batches


def alone(shape: Shape, seed: int, vocab: int, dtype: torch.dtype) -> tuple[DraftTree, Tensor]:
    """One tree [1, N] and its distributions [1, S, V]."""
    p, q = tables(vocab, shape.depth, 1, seed)
    trees, place = draft(shape, q, KeyedDraws([stream_key(seed, 1)], [4], CPU))
    assert trees.proposals is not None
    trees.proposals = trees.proposals.to(dtype)
    return trees, p[:, place[0]].to(dtype)


def padded(rows: list[tuple[DraftTree, Tensor]], ruin: int | None) -> tuple[DraftTree, Tensor]:
    """All of them in one batch, with junk after each; row `ruin` has no distribution at all."""
    counts = [trees.nodes for trees, _ in rows]
    width, vocab, dtype = max(counts) + 1, rows[0][1].shape[-1], rows[0][1].dtype
    tokens = torch.randint(vocab, (len(rows), width), generator=torch.Generator().manual_seed(1))
    parents, places = torch.zeros_like(tokens), torch.zeros_like(tokens)
    kinds = torch.full_like(tokens, Kind.PADDING, dtype=torch.int8)
    proposals = torch.full((len(rows), width + 1, vocab), torch.nan, dtype=dtype)
    probs = torch.full((len(rows), width + 1, vocab), 1 / vocab, dtype=dtype)
    for row, (trees, distribution) in enumerate(rows):
        count = counts[row]
        tokens[row, :count], parents[row, :count] = trees.tokens[0], trees.parent_slots[0]
        kinds[row, :count] = int(trees.kind) if trees.kinds is None else trees.kinds[0]
        assert trees.proposals is not None and trees.rows is not None
        places[row, :count] = trees.rows[0]
        proposals[row, : count + 1], probs[row, : count + 1] = trees.proposals[0], distribution[0]
    if ruin is not None:
        probs[ruin] = proposals[ruin] = torch.nan
    one = len({trees.kind for trees, _ in rows}) == 1 and all(t.kinds is None for t, _ in rows)
    chains = all(trees.is_chain for trees, _ in rows)
    return DraftTree(
        tokens,
        counts,
        None if chains else parents,
        None if one else kinds,
        rows[0][0].kind if one else CHOSEN,
        proposals,
        places,
    ), probs


def verdict(rule: Verifier, trees: DraftTree, probs: Tensor, seeds: list[int]) -> Verdict:
    own = rule.draws or KeyedDraws
    draws = own([stream_key(seed, 0) for seed in seeds], [9] * len(seeds), CPU)
    return rule(trees, Scores(probs * torch.nan, probs, probs[..., 0] < 0), draws)


BATCHES = {
    "chains": (DRAWN, [(0,), (0, 1, 2, 3), (), (0, 1)]),
    "chosen trees": (CHOSEN, [(0, 0, 1), (0, 1, 1, 1, 2, 5), (), (0, 0, 0, 0, 3, 3)]),
    "drawn trees": (DRAWN, [(0, 0, 1), (0, 1, 1, 1, 2, 5), (), (0, 0, 0, 0, 3, 3)]),
    "rest trees": (REST, [(0, 0, 1), (0, 1, 1, 1, 2, 5), (), (0, 0, 0, 0, 3, 3)]),
}
RULES: list[Verifier] = [rule for rule, _, _ in TAKES]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rows_do_not_know_each_other(rule: Verifier, batch: str, dtype: torch.dtype) -> None:
    """In a ragged batch, with junk as padding and a neighbour of NaN, each verdict is its own."""
    kind, shapes = BATCHES[batch]
    if kind not in rule.kinds or (batch != "chains" and not rule.trees):
        return
    ruin = None if isinstance(rule, OptimalTransport) else len(shapes)
    for seed in range(12):
        every = [*shapes, (0, 1)] if ruin else shapes
        rows = [alone(Shape.of(kind, *s), seed + i, 4, dtype) for i, s in enumerate(every)]
        seeds = [100 * seed + i for i in range(len(rows))]
        together = verdict(rule, *padded(rows, ruin), seeds)
        for row, (trees, probs) in enumerate(rows[: len(shapes)]):
            one = verdict(rule, trees, probs, seeds[row : row + 1])
            length = int(one.lengths)
            assert int(together.lengths[row]) == length <= trees.nodes
            assert together.path[row, :length].equal(one.path[0, :length])
            assert together.token[row] == one.token[0]
            assert (together.path >= 1).all() and (together.path <= together.path.shape[1]).all()


@pytest.mark.parametrize("rule", [MultiCandidate(), Traversal()])
def test_rows_of_several_kinds_in_one_batch(rule: Verifier) -> None:
    """A batch in which each row's nodes were found in another way."""
    for seed in range(12):
        rows = [alone(shape, seed + i, 4, torch.float64) for i, shape in enumerate(MIXED)]
        seeds = [100 * seed + i for i in range(len(rows))]
        together = verdict(rule, *padded(rows, None), seeds)
        for row, (trees, probs) in enumerate(rows):
            one = verdict(rule, trees, probs, seeds[row : row + 1])
            assert int(together.lengths[row]) == int(one.lengths)
            assert together.token[row] == one.token[0]


@pytest.mark.parametrize("rule", [*RULES, Greedy()], ids=lambda rule: type(rule).__name__)
def test_nothing_drafted(rule: Verifier) -> None:
    """An empty tree is a plain decoding step."""
    probs = torch.tensor([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    trees = DraftTree(torch.zeros(2, 0, dtype=torch.long), [0, 0])
    path, lengths, token, _ = verdict(rule, trees, probs, [1, 2])
    assert path.shape == (2, 0) and lengths.tolist() == [0, 0] and token.tolist() == [1, 2]


@pytest.mark.parametrize("kind", [CHOSEN, DRAWN])
def test_temperature_zero_is_exact_match(kind: Kind) -> None:
    """On one-hot distributions every rule does what target-only sampling does, and so does
    `greedy`."""
    shapes = [(0, 1, 2, 3)] if kind == DRAWN else [(0, 1, 2, 3), (0, 0, 1, 2, 2, 3)]
    rules = [Greedy(), *(rule for rule in RULES if kind in rule.kinds)]
    for parents in shapes:
        shape = Shape.of(kind, *parents)
        p, q = (t.argmax(-1) for t in tables(3, shape.depth, 200, 7))
        p, q = (torch.nn.functional.one_hot(t, 3).double() for t in (p, q))
        trees, place = draft(shape, q, GreedyDraws())
        probs = p[torch.arange(200)[:, None], place]
        scores = Scores(probs * torch.nan, probs, probs[..., 0] < 0)
        wanted = TargetOnly()(trees, scores, GreedyDraws())
        assert len(wanted.lengths.unique()) >= 4 - (len(parents) > 4)
        for rule in rules:
            if rule.trees or len(shapes) == 1 or parents == shapes[0]:
                found = rule(trees, scores, GreedyDraws())
                assert found.lengths.equal(wanted.lengths) and found.token.equal(wanted.token)


def test_traversal_of_a_chain_is_block_verification() -> None:
    """Test for test: the same verdicts from the same numbers."""
    for kind in (DRAWN, CHOSEN):
        shape = Shape.of(kind, 0, 1, 2, 3)
        p, q = tables(5, 4, 40, 3)
        trees, place = draft(shape, q, KeyedDraws(list(range(40)), [3] * 40, CPU))
        probs = p[torch.arange(40)[:, None], place]
        for seed in range(20):
            seeds = list(range(1000 * seed, 1000 * seed + 40))
            ours = verdict(Traversal(), trees, probs, seeds)
            other = verdict(Block(), trees, probs, seeds)
            assert ours.lengths.equal(other.lengths) and ours.token.equal(other.token)


# --- acceptance


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_speculative_accepts_as_in_theory(gamma: int) -> None:
    """(1 - α^(γ+1)) / (1 - α) tokens a step on context-free distributions (Leviathan et al. 2023,
    Eq. 1)."""
    p, q = context_free(3, gamma, 20)
    alpha = torch.minimum(p, q)[:, 0].sum(-1)
    theory = sum(alpha**n for n in range(gamma + 1))
    tokens = rule_distribution(Speculative(), Shape.of(DRAWN, *range(gamma)), p, q).accepted + 1
    assert (tokens - theory).abs().max() < 1e-10


@pytest.mark.parametrize(("parents", "vocab"), CHAINS[:4])
def test_block_is_never_worse(parents: tuple[int, ...], vocab: int) -> None:
    """At least token verification's acceptance on every pair, more on some, equal for one token."""
    p, q = tables(vocab, len(parents))
    shape = Shape.of(DRAWN, *parents)
    gain = (
        rule_distribution(Block(), shape, p, q).accepted
        - rule_distribution(Speculative(), shape, p, q).accepted
    )
    assert gain.min() > -1e-12
    assert gain.max() < 1e-12 if len(parents) == 1 else gain.max() > 0.01


def test_block_on_the_papers_example() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two drafted: 10/9 by token, 11/9 by block (section 2)."""
    p = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64).expand(1, 7, -1).contiguous()
    shape = Shape.of(DRAWN, 0, 1)
    for rule, accepted in ((Speculative(), 10 / 9), (Block(), 11 / 9), (Traversal(), 11 / 9)):
        assert abs(float(rule_distribution(rule, shape, p, p.flip(-1)).accepted) - accepted) < 1e-12


@pytest.mark.parametrize("kind", [DRAWN, REST])
@pytest.mark.parametrize(("parents", "vocab"), TREES)
def test_traversal_is_never_worse(kind: Kind, parents: tuple[int, ...], vocab: int) -> None:
    """At least the acceptance of top-down rejection on every pair, by the same tree."""
    shape = Shape.of(kind, *parents)
    p, q = tables(vocab, shape.depth)
    ours = rule_distribution(Traversal(), shape, p, q).accepted
    assert (ours - rule_distribution(MultiCandidate(), shape, p, q).accepted).min() > -1e-12


@pytest.mark.parametrize("kind", [CHOSEN, DRAWN, REST])
def test_candidates_help(kind: Kind) -> None:
    """Each further sibling adds acceptance, or nothing."""
    p, q = tables(4, 1)
    found = [
        rule_distribution(MultiCandidate(), Shape.of(kind, *([0] * count)), p, q).accepted
        for count in (1, 2, 3)
    ]
    for fewer, more in pairwise(found):
        assert (more - fewer).min() > -1e-12 and (more - fewer).max() > 0.01


@pytest.mark.parametrize(("count", "vocab"), [(2, 3), (2, 5), (3, 3), (4, 2)])
def test_k_seq_against_the_optimum(count: int, vocab: int) -> None:
    """Between 1 - 1/e of the optimal transport and all of it; that is above recursive rejection."""
    p, q = tables(vocab, 1)
    shape = Shape.of(DRAWN, *([0] * count))
    rules = (OptimalTransport(), KSeq(), MultiCandidate())
    best, ours, simple = (rule_distribution(rule, shape, p, q).accepted for rule in rules)
    assert (ours - best).max() < 1e-9 and (ours - (1 - 1 / torch.e) * best).min() > -1e-9
    assert (simple - best).max() < 1e-9 and (best - simple).max() > 0.001


def test_gamma_is_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The γ of K-SEQ is the root that a root finder gives, from above."""
    monkeypatch.setattr(k_seq, "_HALVINGS", 40)
    p, q = (t[:, 0] for t in tables(5, 0))
    for count in (2, 5, 9):
        found = k_seq._least_gamma(p, q, torch.full((PAIRS,), float(count)).double())
        for one, other, gamma in zip(p, q, found, strict=True):

            def excess(g: float, one: Tensor = one, other: Tensor = other, k: int = count) -> float:
                beta = float(torch.minimum(other, one / g).sum().clamp(max=1))
                return 1 - (1 - beta) ** k - g * beta

            ends = excess(1.0), excess(float(count))
            root = brentq(excess, 1.0, count) if ends[0] > 1e-12 > -1e-12 > ends[1] else None
            assert excess(float(gamma)) < 1e-9
            assert root is None or abs(float(gamma) - root) < 1e-6


def test_too_large_a_programme_is_refused() -> None:
    """The linear programme says its limit and what to use instead."""
    p, q = tables(17, 1, 1)
    with pytest.raises(ForetokenError, match="k_seq"):
        rule_distribution(OptimalTransport(), Shape.of(DRAWN, 0, 0, 0), p, q)


# --- coupled by a race

MANY = 6_000


@cache
def keys() -> list[int]:
    return [stream_key(seed, 0) for seed in range(MANY)]


def race(position: int = 7) -> GumbelDraws:
    return GumbelDraws(keys(), [position] * MANY, CPU)


def agreement(p: Tensor, q: Tensor) -> float:
    """Σ_x 1 / Σ_y max(p_y / p_x, q_y / q_x): how often two races with one noise agree."""
    both = [x for x in range(len(p)) if p[x] > 0 and q[x] > 0]
    return sum(1 / float(torch.maximum(p / p[x], q / q[x]).sum()) for x in both)


def test_the_race_draws_the_distribution() -> None:
    """Any mass, zeros never; target's pick and draft's draw are one race of the position."""
    weights = torch.tensor([3.0, 0.0, 1.0, 4.0, 2.0], dtype=torch.float64)
    depth = torch.full((MANY, 1), 2)
    found = race().pick(weights.expand(MANY, 1, -1), depth)[:, 0]
    assert found.equal(race().draft(weights.expand(MANY, -1), 2))
    assert found.equal(race(position=9).pick(weights.expand(MANY, 1, -1), depth * 0)[:, 0])
    seen = found.bincount(minlength=5)
    kept = torch.tensor([0, 2, 3, 4])
    assert seen[1] == 0
    assert stats.chisquare(seen[kept], weights[kept] / 10 * MANY).pvalue > 1e-3


def test_the_next_place_is_a_draw_without_replacement() -> None:
    """First and second of the race have the distribution of successive draws."""
    distribution = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    first = race().draft(distribution.expand(MANY, -1), 0)
    second = race().draft(distribution.repeat(MANY, 1).scatter(1, first[:, None], 0.0), 0, 1)
    seen = (3 * first + second).bincount(minlength=9)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    expected = [
        float(distribution[a] * distribution[b] / (1 - distribution[a])) * MANY for a, b in pairs
    ]
    assert stats.chisquare([int(seen[3 * a + b]) for a, b in pairs], expected).pvalue > 1e-3


def test_coupled_agreement() -> None:
    """The measured rate is the formula's, which is above (1 - TV) / (1 + TV)."""
    p, q = (t[:, 0] for t in tables(5, 0))
    for one, other in zip(p[:12], q[:12], strict=True):
        rate, apart = agreement(one, other), float((one - other).abs().sum() / 2)
        assert rate >= (1 - apart) / (1 + apart) - 1e-12
        mine = race().pick(one.expand(MANY, 1, -1), torch.zeros(MANY, 1, dtype=torch.long))[:, 0]
        found = float((mine == race().draft(other.expand(MANY, -1), 0)).double().mean())
        assert abs(found - rate) <= 4.5 * (rate * (1 - rate) / MANY) ** 0.5 + 1e-9


def test_coupled_text_does_not_depend_on_the_drafter(pair: Pair) -> None:
    """Token for token what plain decoding writes with the same race, from any drafter."""
    params = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=20, seed=5, ignore_eos=True)
    prompts = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3]]

    def written(drafter: Any, slots: int = 2) -> tuple[list[list[int]], float]:
        outputs = serve(pair.target, drafter, Gumbel(), prompts, params, slots=slots)
        steps = sum(output.stats.passes for output in outputs)
        return [output.token_ids for output in outputs], steps

    plain, most = written(Nothing())
    drafters = [
        SmallLM(pair.draft, 3),
        PromptLookup(3),
        Drawn(pair.draft, (1, 1), REST),
        Drawn(pair.draft, (2, 1), REST),
        Drawn(pair.draft, (2, 1), DRAWN),
    ]
    for drafter in drafters:
        for slots in (1, 2):
            text, steps = written(drafter, slots)
            assert text == plain
            assert steps < most or isinstance(drafter, PromptLookup)
