"""The heaviest tree against trying every node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken.trees.best_first import NONE, best_first

Tree = dict[int, tuple[float, "Tree"]]
shares = st.floats(0.05, 1)
TREES = st.recursive(
    st.just({}),
    lambda below: st.dictionaries(st.integers(0, 9), st.tuples(shares, below), max_size=3),
    max_leaves=12,
)


def following(tree: Tree) -> Iterator[tuple[float, int, Tree]]:
    for token, (share, below) in tree.items():
        yield share, token, below


def weights(tree: Tree, path: tuple[int, ...] = (), weight: float = 1.0) -> dict[tuple, float]:  # type: ignore[type-arg]
    found = {}
    for token, (share, below) in tree.items():
        found[(*path, token)] = weight * share
        found |= weights(below, (*path, token), weight * share)
    return found


@given(TREES, st.integers(0, 8), st.sampled_from([0.0, 0.3]))
def test_the_heaviest_nodes(tree: Tree, most: int, least: float) -> None:
    """The nodes hang together and weigh as much as any that could have been taken."""
    tokens, parents, score = best_first(tree, following, most, least=least)
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*paths[parent], token))
    every = weights(tree)
    own = [every[path] for path in paths[1:]]
    enough = sorted((w for w in every.values() if w >= least), reverse=True)
    assert len(set(paths)) == len(paths) and own == pytest.approx(enough[:most])
    assert score == pytest.approx(sum(own))


def test_few_children() -> None:
    """With one child each the tree is the path of the likeliest; ties go to the first."""
    tree: Tree = {1: (0.4, {}), 2: (0.6, {3: (0.5, {}), 4: (0.5, {})}), 5: (0.6, {})}
    assert best_first(tree, following, 9, width=1)[:2] == ([2, 3], [0, 1])
    assert best_first(tree, following, 4, width=2)[0] == [2, 5, 3, 4]
    assert best_first({}, following, 3) == NONE == best_first(tree, following, 0)
