"""Trees are what their builders say: against slow and obvious ways of building the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import product
from math import isclose, log, prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foretoken import SamplingParams
from foretoken.draws import KeyedDraws
from foretoken.errors import ForetokenError
from foretoken.protocols import BaseDrafter, Drafter
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Drawn,
    Pair,
    check_distribution,
    check_seeded,
    logits_after,
    table_pair,
)
from foretoken.testing.enumeration import EnumeratedDraws, Script
from foretoken.tree import DraftTree, Kind
from foretoken.trees.grow import (
    MEDUSA_63,
    Frontier,
    Grower,
    Widths,
    beam,
    expand,
    merge,
    sample,
    static,
    widths_of,
)
from foretoken.trees.plan import best_tree
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.target_only import TargetOnly

CPU = torch.device("cpu")
VOCAB = 5
SAMPLED = SamplingParams(temperature=0.8)

Node = tuple[tuple[int, ...], float]
"""A path of tokens and its probability."""


def distribution(row: int, path: Seq[int], vocab: int = VOCAB) -> Tensor:
    """Some distribution [V] for each path of each row, always the same one, without ties."""
    seed = torch.Generator().manual_seed(hash((row, tuple(path))) % 2**31)
    weights = torch.rand(vocab, generator=seed, dtype=torch.float64)
    return weights / weights.sum()


class Asked:
    """Answers with `distribution`, and checks that it is asked as a drafter with a cache must
    be."""

    def __init__(self, vocab: int = VOCAB) -> None:
        self.vocab = vocab
        self.run: list[Tensor] = []  # slots [B, M] of each frontier so far
        self.frontiers: list[Frontier] = []

    def __call__(self, frontier: Frontier) -> Tensor:
        self.run.append(frontier.slots)
        self.frontiers.append(frontier)
        rows = enumerate(frontier.contexts())
        return torch.stack(
            [
                torch.stack([distribution(b, path, self.vocab) for path in paths])
                for b, paths in rows
            ]
        )

    def check(self, tree: DraftTree) -> None:
        """Masks are the tree's own, restricted to what was run; parents and tokens are right."""
        slots = torch.cat([torch.zeros(tree.batch, 0, dtype=torch.int64), *self.run], 1)
        ends = torch.tensor([run.shape[1] for run in self.run]).cumsum(0).tolist()
        contexts = tree.contexts()
        for level, (frontier, end) in enumerate(zip(self.frontiers, ends, strict=True)):
            for b in range(tree.batch):
                own = tree.ancestors[b][frontier.slots[b]][:, slots[b, :end]]
                assert frontier.sees[b].equal(own)
                assert frontier.contexts()[b] == [contexts[b][s] for s in frontier.slots[b]]
                if level:
                    before = self.run[level - 1][b][frontier.parents[b]]
                    assert before.equal(tree.parent_slots[b][frontier.slots[b] - 1])
                    assert frontier.tokens[b].equal(tree.tokens[b][frontier.slots[b] - 1])


def likeliest(row: int, path: tuple[int, ...], count: int, vocab: int = VOCAB) -> list[int]:
    """Tokens by falling probability."""
    return distribution(row, path, vocab).topk(min(count, vocab)).indices.tolist()


def paths_of(tree: DraftTree) -> list[list[tuple[int, ...]]]:
    """Each row's nodes as token paths, in order."""
    return [
        [tuple(path) for path in row[1 : count + 1]]
        for row, count in zip(tree.contexts(), tree.counts, strict=True)
    ]


def in_order(tree: DraftTree) -> bool:
    slots = torch.arange(1, tree.nodes + 1)
    return bool((tree.parent_slots < slots).all())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_top_k_expansion(widths: list[int], budgets: list[int]) -> None:
    """Level by level every node's likeliest tokens, cut to the budget from after."""
    tree = expand(Asked(), widths, budgets, CPU)
    for row, (budget, found) in enumerate(zip(budgets, paths_of(tree), strict=True)):
        expected: list[tuple[int, ...]] = []
        level: list[tuple[int, ...]] = [()]
        for width in widths:
            level = [(*p, t) for p in level for t in likeliest(row, p, width)] if width else []
            expected += level
        assert found == expected[:budget]
    asked = Asked()
    asked.check(expand(asked, widths, [10**6] * len(budgets), CPU))
    assert in_order(tree) and tree.proposals is None and tree.kinds is None


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 14), min_size=1, max_size=3))
def test_beam_with_rerank(width: int, depth: int, budgets: list[int]) -> None:
    """EAGLE-2's tree: nothing left out of what was expanded is likelier than what was kept."""
    tree = beam(Asked(), width, depth, budgets, CPU)
    for row, (budget, found) in enumerate(zip(budgets, paths_of(tree), strict=True)):
        made = beam_nodes(row, width, depth)
        assert len(found) == len(set(found)) == min(budget, len(made))
        kept = [made[path] for path in found]
        others = [share for path, share in made.items() if path not in found]
        assert kept == sorted(kept, reverse=True)
        assert not kept or max(others, default=0) <= kept[-1] * (1 + 1e-12)
        assert all(path[:-1] in ((), *found[:at]) for at, path in enumerate(found))
    assert in_order(tree)


def beam_nodes(row: int, width: int, depth: int) -> dict[tuple[int, ...], float]:
    """Every node that the beam makes, by its path, with the path's probability."""
    made: dict[tuple[int, ...], float] = {}
    level: list[Node] = [((), 1.0)]
    for _ in range(depth):
        below = []
        for path, share in level:
            here = distribution(row, path)
            for token in likeliest(row, path, width):
                below.append(((*path, token), share * min(1.0, float(here[token]))))
        made.update(below)
        level = sorted(below, key=lambda node: -node[1])[:width]
    return made


def test_beam_masks() -> None:
    """The frontiers of a beam see their own paths only, though most nodes are never run."""
    grower, asked = Grower(3, CPU), Asked()
    for _ in range(4):
        grower.choose(asked(grower.frontier), 3, keep=2)
    asked.check(grower.tree())
    assert [f.slots.shape[1] for f in asked.frontiers] == [1, 2, 2, 2]


def test_equally_likely_paths_hang_together() -> None:
    """Certain tokens: child and parent are equally likely, and the parent is kept first."""
    sure = torch.zeros(1, 1, VOCAB, dtype=torch.float64)
    sure[..., 2] = 1
    tree = beam(lambda f: sure.expand(1, f.slots.shape[1], -1), 2, 5, [4], CPU)
    assert paths_of(tree) == [[(2,), (2, 2), (2, 2, 2), (2, 2, 2, 2)]]


@pytest.mark.parametrize("first", [0, 1])
def test_a_bad_row_leaves_the_others_alone(first: int) -> None:
    """NaN distributions at all or some nodes of a row: its tree is still a tree, the other row's is
    what it was."""

    def spoilt(frontier: Frontier) -> Tensor:
        distributions = Asked()(frontier)
        distributions[0, first:] = torch.nan
        return distributions

    for make in (
        lambda ask: beam(ask, 3, 3, [8, 8], CPU),
        lambda ask: expand(ask, (2, 2), [8, 8], CPU),
        lambda ask: drawn(ask, (2, 2), Kind.WITHOUT_REPLACEMENT),
        lambda ask: drawn(ask, (2, 2), Kind.INDEPENDENT),
    ):
        tree, clean = make(spoilt), make(Asked())
        assert in_order(tree) and 0 <= int(tree.tokens.min()) <= int(tree.tokens.max()) < VOCAB
        assert tree.tokens[1].equal(clean.tokens[1])
        assert tree.parent_slots[1].equal(clean.parent_slots[1])


def drawn(ask: Any, widths: Widths, kind: Kind) -> DraftTree:
    return sample(ask, widths, [99, 99], CPU, KeyedDraws([5, 6], [9, 4], CPU), kind)


@pytest.mark.parametrize("kind", [Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("branches", [(3, 1, 1), (2, 2), (1, 1, 1), (2, 3, 1)])
def test_drawn_trees(kind: Kind, branches: tuple[int, ...]) -> None:
    """Token for token the tree that `Drawn` draws, a sequence and a distribution at a time."""
    pair = table_pair(4)
    sequences = [Sequence.start(tokens, SAMPLED, seed=3) for tokens in ([0, 1, 2], [3, 3])]
    draws = KeyedDraws([s.key for s in sequences], [3, 2], CPU)
    drafter = Drawn(pair.draft, branches, kind)
    drafter._device = CPU
    slow = drafter.draft(sequences, [99, 99], draws)
    tree = sample(asker(pair, sequences), branches, [99, 99], CPU, draws, kind)
    assert tree.tokens.equal(slow.tokens) and tree.parent_slots.equal(slow.parent_slots)
    assert tree.counts == slow.counts and tree.valid.equal(slow.valid)
    for node in range(tree.nodes):
        assert torch.equal(row_of(tree, node), row_of(slow, node))


def row_of(tree: DraftTree, node: int) -> Tensor:
    assert tree.proposals is not None
    rows = tree.rows[:, node] if tree.rows is not None else torch.full((tree.batch,), node)
    return tree.proposals[torch.arange(tree.batch), rows]


class Noting(KeyedDraws):
    """Notes the numbers of the draws."""

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        self.numbers = [*getattr(self, "numbers", []), (depth, sibling)]
        return super().draft(distribution, depth, sibling)


@pytest.mark.parametrize("kind", [Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT])
def test_every_draw_has_its_own_number(kind: Kind) -> None:
    """Siblings and cousins: no two nodes of a tree share their noise."""
    draws = Noting([1, 2], [7, 9], CPU)
    tree = sample(Asked(), [[2], [3, 1], [0, 2, 1, 1]], [99, 99], CPU, draws, kind)
    assert tree.nodes == len(draws.numbers) == len(set(draws.numbers)) == 10


def outcomes(run: Callable[[EnumeratedDraws], DraftTree]) -> Iterator[tuple[DraftTree, float]]:
    """Every tree that can be drawn, with its probability."""
    todo: list[list[int]] = [[]]
    while todo:
        script = Script(todo.pop())
        tree = run(EnumeratedDraws([script]))
        todo += script.others
        yield tree, script.weight


def test_the_distribution_of_drawn_trees() -> None:
    """Siblings: independent ones have the product of the distribution, others lose their elders."""
    here = distribution(0, ())
    for kind in (Kind.INDEPENDENT, Kind.WITHOUT_REPLACEMENT):
        found: dict[tuple[int, ...], float] = defaultdict(float)
        for tree, weight in outcomes(lambda d, k=kind: sample(Asked(), (2, 1), [9], CPU, d, k)):
            found[tuple(tree.tokens[0].tolist())] += weight
        for a, b, c, d in product(range(VOCAB), repeat=4):
            second = float(here[b])
            if kind is Kind.WITHOUT_REPLACEMENT:
                second = 0.0 if a == b else float(here[b]) / float(1 - here[a])
            wanted = (
                float(here[a])
                * second
                * float(distribution(0, (a,))[c])
                * float(distribution(0, (b,))[d])
            )
            assert isclose(found[a, b, c, d], wanted, abs_tol=1e-12)


def test_an_exhausted_distribution_leaves_padding() -> None:
    """Two possible tokens give two children, whatever came first; nothing hangs from the third."""
    two = torch.tensor([0.25, 0, 0.75, 0, 0], dtype=torch.float64)

    def ask(frontier: Frontier) -> Tensor:
        return two.expand(1, frontier.slots.shape[1], -1).clone()

    for tree, _ in outcomes(lambda d: sample(ask, (3, 1), [9], CPU, d, Kind.WITHOUT_REPLACEMENT)):
        assert tree.valid.tolist() == [[True, True, False, True, True, False]]
        assert set(tree.tokens[0, :2].tolist()) == {0, 2}
        assert tree.proposals is not None and tree.proposals[0].equal(two.expand(4, -1))


def test_a_chain_is_a_chain() -> None:
    """Width 1 all the way: no parents, and node i came from row i."""
    tree = sample(Asked(), (1, 1, 1), [2, 3], CPU, KeyedDraws([1, 2], [3, 4], CPU), Kind(1))
    assert tree.is_chain and tree.rows is None and tree.kinds is None and tree.counts == [2, 3]
    assert expand(Asked(), (1, 1), [2], CPU).is_chain


def test_nothing_to_draft() -> None:
    """No budget, no widths, no batch."""
    for tree in (
        expand(Asked(), (2, 2), [0, 0], CPU),
        beam(Asked(), 2, 2, [0], CPU),
        expand(Asked(), (), [3], CPU),
        merge([[], []], [[], []], [3, 3], CPU),
        static((), torch.zeros(2, 0, 0, dtype=torch.int64)),
    ):
        assert tree.nodes == 0 and not any(tree.counts) and tree.tokens.dtype == torch.int64


def test_no_level_beyond_the_budget_is_asked_for() -> None:
    """A drafter's passes are dear: what would be cut off whole is not drafted at all."""
    draws = KeyedDraws([1, 2], [1, 1], CPU)
    for budgets, passes in (([2, 1], 1), ([3, 0], 2), ([9, 9], 3), ([0, 0], 0)):
        asked, other = Asked(), Asked()
        expand(asked, (2, 1, 1), budgets, CPU)
        sample(other, (2, 1, 1), budgets, CPU, draws, Kind.INDEPENDENT)
        assert len(asked.run) == len(other.run) == passes


def test_more_children_than_tokens() -> None:
    """Widths beyond the vocabulary give the whole vocabulary."""
    tree = expand(Asked(3), (7,), [9], CPU)
    assert sorted(tree.tokens[0].tolist()) == [0, 1, 2]


def test_mixed_levels() -> None:
    """Chosen children under drawn ones: each node says what it is and where it came from."""
    grower, asked = Grower(1, CPU), Asked()
    grower.draw(asked(grower.frontier), 2, KeyedDraws([1], [1], CPU), Kind.INDEPENDENT)
    grower.choose(asked(grower.frontier), 1)
    grower.draw(asked(grower.frontier), 1, KeyedDraws([1], [1], CPU), Kind.WITHOUT_REPLACEMENT)
    tree = grower.tree()
    assert tree.kinds is not None and tree.kinds.tolist() == [[1, 1, 0, 0, 2, 2]]
    assert tree.rows is not None and tree.rows[0, [0, 1, 4, 5]].tolist() == [0, 0, 1, 2]
    with pytest.raises(ForetokenError, match="bias"):
        grower.ranked([3])


@st.composite
def rank_paths(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """A tree by rank paths: each new node is the next child of some node."""
    paths: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(0, 12))):
        above = draw(st.sampled_from([(), *paths]))
        paths.append((*above, sum(path[:-1] == above for path in paths)))
    return paths


@settings(max_examples=60, deadline=None)
@given(rank_paths())
def test_trees_by_rank(paths: list[tuple[int, ...]]) -> None:
    """As widths, and filled from a table: node by node the tokens that the ranks name."""
    ordered = sorted(paths, key=lambda path: (len(path), path))
    grown = paths_of(expand(Asked(13), widths_of(paths), [99, 99], CPU))
    for row in range(2):
        expected = []
        for path in ordered:
            tokens: tuple[int, ...] = ()
            for rank in path:
                tokens = (*tokens, likeliest(row, tokens, 13, 13)[rank])
            expected.append(tokens)
        assert grown[row] == expected
    candidates = torch.arange(2 * 13 * 13).view(2, 13, 13)
    filled = paths_of(static(paths, candidates))
    for row in range(2):
        named = [tuple(int(candidates[row, d, r]) for d, r in enumerate(p)) for p in paths]
        assert filled[row] == named


def test_trees_by_rank_with_holes_are_refused() -> None:
    """Orphans, missing elders, doubles, and tables that are too small."""
    for paths in ([(1,)], [(0, 0)], [(0,), (0, 1)]):
        with pytest.raises(ForetokenError, match="siblings"):
            widths_of(paths)
    table = torch.zeros(1, 2, 3, dtype=torch.int64)
    for paths, said in (
        ([(0, 0), (0,)], "before its parent"),
        ([(0,), (0,)], "twice"),
        ([(3,)], "1 levels of 4 candidates"),
        ([(0,), (0, 0), (0, 0, 0)], "3 levels of 1"),
    ):
        with pytest.raises(ForetokenError, match=said):
            static(paths, table)
    with pytest.raises(ForetokenError, match="widths"):
        expand(Asked(), [2, [1]], [9], CPU)
    with pytest.raises(ForetokenError, match="2 distributions"):
        Grower(1, CPU).choose(torch.zeros(1, 2, 3), 1)


def test_medusas_tree() -> None:
    """63 nodes, four levels, ten ranks at most, every prefix an earlier node."""
    assert len(MEDUSA_63) == len(set(MEDUSA_63)) == 63
    assert Counter(map(len, MEDUSA_63)) == {1: 10, 2: 28, 3: 23, 4: 2}
    assert max(max(path) for path in MEDUSA_63) == 9
    tree = static(MEDUSA_63, torch.arange(40).view(1, 4, 10))
    assert tree.nodes == 63 and in_order(tree)
    assert [len(level) for level in widths_of(MEDUSA_63)] == [1, 10, 28, 23]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(0, 3)), max_size=6),
    st.integers(0, 10),
)
def test_merge_by_weight(branches: list[tuple[list[int], int]], budget: int) -> None:
    """The heaviest prefixes, each with all that stands before it, heaviest first."""
    paths, weights = [path for path, _ in branches], [weight for _, weight in branches]
    [found] = paths_of(merge([paths], [weights], [budget], CPU))
    total = {
        tuple(path[:end]): sum(w for p, w in branches if p[:end] == path[:end])
        for path in paths
        for end in range(1, len(path) + 1)
    }
    kept = [total[path] for path in found]
    others = [weight for path, weight in total.items() if path not in found]
    assert len(found) == len(set(found)) == min(budget, len(total))
    assert kept == sorted(kept, reverse=True)
    assert not kept or max(others, default=0) <= kept[-1]
    assert all(path[:-1] in ((), *found) for path in found)


# Through the loop: drafters of a few lines, on tables whose distributions are known.

Build = Callable[[Any, Seq[int], Any], DraftTree]


def asker(pair: Pair, sequences: Seq[Sequence]) -> Callable[[Frontier], Tensor]:
    """The draft model's folded distributions, each from scratch."""

    def ask(frontier: Frontier) -> Tensor:
        distributions = [
            [
                fold(
                    logits_after(pair.draft, [*s.tokens, *path])[None, None],
                    [s],
                    lambda path=path: [[path]],
                ).probs[0, 0]
                for path in paths
            ]
            for s, paths in zip(sequences, frontier.contexts(), strict=True)
        ]
        return torch.stack([torch.stack(row) for row in distributions])

    return ask


class Built(BaseDrafter):
    """Drafts what a builder builds from the draft model's distributions."""

    trees = True

    def __init__(self, pair: Pair, build: Build, kind: Kind = Kind.CHOSEN) -> None:
        self.pair, self.build, self.kinds = pair, build, frozenset({kind})

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Any) -> DraftTree:
        return self.build(asker(self.pair, sequences), budgets, draws)


CHOSEN: dict[str, Build] = {
    "expand": lambda ask, budgets, draws: expand(ask, (2, 2, 1), budgets, CPU),
    "beam": lambda ask, budgets, draws: beam(ask, 2, 3, [min(5, b) for b in budgets], CPU),
    "planned": lambda ask, budgets, draws: expand(
        ask, widths_of(best_tree([0.6, 0.25], 6, 4).paths), budgets, CPU
    ),
    "static": lambda ask, budgets, draws: static(
        [(0,), (1,), (0, 0), (1, 0), (0, 1)],
        torch.arange(6).view(1, 2, 3).expand(len(budgets), -1, -1),
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_trees_keep_the_text(name: str) -> None:
    """Any temperature, alone and in ragged batches: the tokens of plain decoding."""

    def make(pair: Pair) -> Drafter:
        return Built(pair, CHOSEN[name])

    pair = table_pair(6)
    prompts = [[0, 1, 2, 3], [4, 4], [5], [2, 0, 2]]
    for slots in (1, 4):
        outputs = check_seeded(
            make,
            TargetOnly(),
            pair,
            slots=slots,
            prompts=prompts,
            params=SamplingParams(temperature=0.7, presence_penalty=0.3, max_tokens=16, seed=3),
        )
        assert sum(output.stats.accepted for output in outputs) > 0


def test_the_products_of_paths() -> None:
    """`beam`'s scores are log-probabilities of whole paths."""
    grower, asked = Grower(1, CPU), Asked()
    for _ in range(3):
        grower.choose(asked(grower.frontier), 1)
    [path] = grower.frontier.contexts()[0]
    share = prod(float(distribution(0, path[:at])[token]) for at, token in enumerate(path))
    assert isclose(float(grower.frontier.scores), log(share))


DRAWN: dict[str, tuple[Kind, Widths]] = {
    "branches": (Kind.INDEPENDENT, (2, 1)),
    "uneven": (Kind.WITHOUT_REPLACEMENT, [[2], [0, 2]]),
    "planned": (Kind.WITHOUT_REPLACEMENT, widths_of(best_tree([0.6, 0.25], 4, 2).paths)),
    "exhausted": (Kind.WITHOUT_REPLACEMENT, (3, 1)),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("budget", [4, 2])
def test_drawn_trees_keep_the_distribution(name: str, budget: int) -> None:
    """Every outcome of a step with a drawn tree, whole or cut: the distribution is the target's."""
    kind, widths = DRAWN[name]

    def make(pair: Pair) -> Drafter:
        def build(ask: Any, budgets: Seq[int], draws: Any) -> DraftTree:
            return sample(ask, widths, budgets, CPU, draws, kind)

        return Built(pair, build, kind)

    params = SamplingParams(temperature=0.7, top_k=2 if name == "exhausted" else 3)
    check_distribution(
        make, MultiCandidate(), table_pair(4), params, 3, steps=1, budget=budget, rows=64
    )


def test_choosing_by_value_among_drawn_nodes_is_caught() -> None:
    """Not allowed: of two drawn branches the likelier one is kept."""

    def make(pair: Pair) -> Drafter:
        def build(ask: Any, budgets: Seq[int], draws: Any) -> DraftTree:
            tree = sample(ask, (2,), budgets, CPU, draws, Kind.INDEPENDENT)
            assert tree.proposals is not None
            share = tree.proposals[:, 0].gather(1, tree.tokens)
            best = tree.tokens.gather(1, share.argmax(1, keepdim=True))
            return DraftTree(best, [1] * tree.batch, kind=tree.kind, proposals=tree.proposals)

        return Built(pair, build, Kind.INDEPENDENT)

    with pytest.raises(AssertionError, match="is off by"):
        check_distribution(
            make, MultiCandidate(), table_pair(3), SAMPLED, 2, steps=1, budget=2, tolerance=1e-2
        )
