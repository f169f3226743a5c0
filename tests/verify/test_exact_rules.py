"""Lossless rules, proved: every outcome of draft and rule is followed, on tables of p and q.

The distribution of the first γ + 1 tokens is the target's to 1e-12, for each rule, kind of node and
shape; rows of ragged batches are the same as alone; acceptance is the theory's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from foretoken.draws import GreedyDraws, KeyedDraws, stream_key
from foretoken.protocols import Scores, Verifier
from foretoken.testing.rules import Shape, draft, own_distribution, rule_distribution
from foretoken.tree import DraftTree, Kind
from foretoken.verify import k_seq, optimal_transport, traversal
from foretoken.verify.block import Block
from foretoken.verify.greedy import Greedy
from foretoken.verify.k_seq import KSeq
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.optimal_transport import OptimalTransport
from foretoken.verify.shared import chains
from foretoken.verify.shared.residual import Offer, Residual
from foretoken.verify.target_only import TargetOnly
from foretoken.verify.traversal import Traversal
from rule_tables import CHOSEN, CPU, DRAWN, MIXED, REST, RULES, TAKES, off, tables, verdict

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
    """25 pairs of tables a shape, to 1e-12."""
    assert off(rule, Shape.of(kind, *parents), vocab) <= 1e-12


@pytest.mark.parametrize("rule", [MultiCandidate(), Traversal(), Block(), KSeq()])
def test_single_precision_keeps_the_distribution(rule: Verifier) -> None:
    """In float32 the distribution is off by rounding only."""
    p, q = tables(3, 2)
    kind = DRAWN if isinstance(rule, KSeq) else REST
    shape = Shape.of(kind, *((0, 0, 1) if rule.trees else (0, 1)))
    found = rule_distribution(rule, shape, p.float(), q.float()).distribution
    assert (found - own_distribution(p, 3)).abs().max() < 1e-5


def unpaid(patch: pytest.MonkeyPatch) -> None:
    """A rejection leaves the residual as it was."""
    patch.setattr(Residual, "reject", lambda self, offer: None)


def kept_token(patch: pytest.MonkeyPatch) -> None:
    """A rejected chosen token may be drawn again."""
    patch.setattr(Residual, "_remove", lambda self, token, chosen: None)


def whole_distribution(patch: pytest.MonkeyPatch) -> None:
    """Siblings without replacement are taken for independent draws."""
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
    "kept token": (kept_token, MultiCandidate(), Shape((0, 0), (CHOSEN, DRAWN))),
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


BATCHES = {
    "chains": (DRAWN, [(0,), (0, 1, 2, 3), (), (0, 1)]),
    "chosen trees": (CHOSEN, [(0, 0, 1), (0, 1, 1, 1, 2, 5), (), (0, 0, 0, 0, 3, 3)]),
    "drawn trees": (DRAWN, [(0, 0, 1), (0, 1, 1, 1, 2, 5), (), (0, 0, 0, 0, 3, 3)]),
    "rest trees": (REST, [(0, 0, 1), (0, 1, 1, 1, 2, 5), (), (0, 0, 0, 0, 3, 3)]),
}


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
