"""The planner finds the best tree there is: against every tree, tried one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretoken.errors import ForetokenError
from foretoken.trees.plan import (
    Paths,
    TreeTable,
    acceptance_vector,
    best_tree,
    expected_tokens,
    fastest_tree,
)


@cache
def all_trees(nodes: int, depth: int, ranks: int) -> list[Paths]:
    """Every tree of exactly `nodes` nodes below a root, in at most `depth` levels.

    The first child with its tree, then the other children: ranks have no holes.
    """
    return [sorted(tree, key=lambda p: (len(p), p)) for tree in _forests(nodes, depth, ranks, 0)]


def _forests(nodes: int, depth: int, ranks: int, rank: int) -> Iterator[Paths]:
    if nodes == 0:
        yield []
    elif depth and rank < ranks:
        for own in range(1, nodes + 1):
            for below in all_trees(own - 1, depth - 1, ranks):
                mine = [(rank,), *((rank, *path) for path in below)]
                for others in _forests(nodes - own, depth, ranks, rank + 1):
                    yield mine + others


@st.composite
def acceptance(draw: st.DrawFn) -> list[float]:
    """Shares by rank, in any order, some of them 0."""
    weights = draw(st.lists(st.integers(0, 10), min_size=1, max_size=5))
    total = sum(weights) + draw(st.integers(0, 10))
    return [weight / max(1, total) for weight in weights]


def test_all_trees_are_all() -> None:
    """Ordered trees are counted by Catalan's numbers, narrow and flat ones by one."""
    assert [len(all_trees(n, n, n)) for n in range(1, 8)] == [1, 2, 5, 14, 42, 132, 429]
    assert len(all_trees(6, 6, 1)) == len(all_trees(6, 1, 6)) == 1
    assert not all_trees(3, 2, 1)


@settings(max_examples=40, deadline=None)
@given(acceptance(), st.integers(0, 8), st.integers(0, 8))
@example([0.1, 0.6, 0.2], 8, 8)  # a later child may be the likeliest
@example([0.0, 1.0], 8, 3)
def test_best_tree_is_the_best_of_all(p: list[float], nodes: int, depth: int) -> None:
    """No tree within the budget and depth yields more, and this one yields what is said."""
    plan = best_tree(p, nodes, depth)
    best = max(
        expected_tokens(tree, p)
        for count in range(nodes + 1)
        for tree in all_trees(count, depth, len(p))
    )
    assert plan.tokens == pytest.approx(best, abs=1e-12)
    assert expected_tokens(plan.paths, p) == pytest.approx(plan.tokens, abs=1e-12)
    assert len(plan.paths) <= nodes and plan.depth <= depth
    assert plan.paths in all_trees(len(plan.paths), depth, len(p))


def test_known_trees() -> None:
    """A chain where only first children count, a star where depth is 1, nothing for nothing."""
    assert best_tree([0.8], 3, 5).paths == [(0,), (0, 0), (0, 0, 0)]
    assert best_tree([0.8], 3, 5).tokens == pytest.approx((1 - 0.8**4) / (1 - 0.8))
    assert best_tree([0.5, 0.3, 0.1], 3, 1).paths == [(0,), (1,), (2,)]
    assert best_tree([0.5, 0.3], 0, 4).paths == best_tree([0.5, 0.3], 4, 0).paths == []
    assert best_tree([0.0, 0.0], 4, 4).paths == []  # what is never accepted is not drafted
    assert best_tree([0.6, 0.3], 3, 9).paths == [(0,), (1,), (0, 0)]


@settings(max_examples=40, deadline=None)
@given(
    acceptance(),
    st.lists(st.integers(1, 20), min_size=7, max_size=7),
    st.integers(0, 6),
)
def test_fastest_tree_is_the_fastest_of_all(p: list[float], times: list[int], draft: int) -> None:
    """Any cost curve: no tree of up to 6 nodes and 4 levels gives more tokens a second."""

    def speed(tree: Paths) -> float:
        cost = max(times[: len(tree) + 1]) + draft * max(map(len, tree), default=0)
        return 1000 * expected_tokens(tree, p) / cost

    plan = fastest_tree(p, dict(enumerate(times)), draft, nodes=6, depth=4)
    best = max(speed(t) for count in range(7) for t in all_trees(count, 4, len(p)))
    assert speed(plan.paths) == pytest.approx(best)
    assert plan.tokens_per_second == pytest.approx(best)


def test_the_cost_curve_decides() -> None:
    """A flat curve takes all it may, a steep one less, dear drafting is shallow or left out."""
    p = [0.6, 0.2, 0.1]
    flat, steep = {0: 10.0, 64: 10.0}, {0: 10.0, 64: 200.0}
    wide = fastest_tree(p, flat, 0.0, nodes=64, depth=8)
    assert len(wide.paths) == 64 and wide.depth == 8
    assert 0 < len(fastest_tree(p, steep, 0.0, nodes=64, depth=8).paths) < 10
    assert 0 < fastest_tree(p, flat, 3.0, nodes=64, depth=8).depth < 5
    plain = fastest_tree(p, flat, 100.0, nodes=64, depth=8)
    assert plain.paths == [] and plain.tokens_per_second == pytest.approx(100.0)


def test_it_is_quick() -> None:
    """128 nodes, 16 levels and 32 ranks take less than a second."""
    p = [0.5 * 0.5**rank for rank in range(32)]
    begun = time.process_time()
    plan = fastest_tree(p, {0: 20.0, 128: 60.0}, 1.0)
    assert time.process_time() - begun < 1
    assert expected_tokens(plan.paths, p) == pytest.approx(plan.tokens)


def test_acceptance_from_counts() -> None:
    """Shares by rank; unseen ranks are 0, and no more than everything is ever accepted."""
    assert acceptance_vector([60, 10, 0, 0], [100, 50, 50, 0]) == [0.6, 0.2, 0.0, 0.0]
    assert acceptance_vector([9, 9], [10, 10]) == pytest.approx([0.5, 0.5])
    for accepted, offered in (([1], [0]), ([1, 2], [3]), ([-1], [3])):
        with pytest.raises(ForetokenError, match="sibling rank"):
            acceptance_vector(accepted, offered)


def test_what_cannot_be_planned_is_said() -> None:
    """Vectors that are none, curves without plain decoding."""
    for p in ([], [0.9, 0.2], [-0.1]):
        with pytest.raises(ForetokenError, match="acceptance vector"):
            best_tree(p, 3, 3)
    for curve, draft in (({1: 5.0}, 1.0), ({0: 0.0}, 1.0), ({0: 1.0}, -1.0)):
        with pytest.raises(ForetokenError, match="target_ms"):
            fastest_tree([0.5], curve, draft)
    with pytest.raises(ForetokenError, match="call_ms must not be negative"):
        TreeTable([0.5], 3, 3).fastest({0: 1.0}, 0.0, -1.0)
