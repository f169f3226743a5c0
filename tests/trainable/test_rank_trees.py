"""Trees by the ranks of their tokens."""

from __future__ import annotations

import pytest
import torch

from foretoken import ForetokenError
from foretoken.trainable.rank_trees import (
    check_paths,
    drawn_tree_acceptance,
    fitting_paths,
    plan_tree,
    tree_acceptance,
    tree_from_option,
)
from foretoken.trees.grow import MEDUSA_63, widths_of


def test_a_tree_by_ranks() -> None:
    """A path is accepted as far as the text's ranks follow it, and no further than the budget."""
    paths = ((0,), (1,), (0, 0), (0, 2), (1, 1), (0, 2, 0))
    rows = [[0, 2, 0], [1, 1, 0], [2, 0, 0], [0, 1, 0], [0, 2, 0], [0, 2, 0], [0, 9, 0], [0, 4, 0]]
    max_nodes = torch.tensor([[9, 9, 9, 9, 3, 0, 9, 9]])
    lengths = tree_acceptance(torch.tensor([rows]), max_nodes, paths).sum(-1)
    assert lengths.tolist() == [[3, 2, 0, 1, 1, 0, 1, 1]]
    lengths = tree_acceptance(torch.tensor([rows[:1]]), torch.tensor([[4]]), paths).sum(-1)
    assert lengths.tolist() == [[2]]


def test_a_tree_that_is_wide_and_deep() -> None:
    """Of which 64 bits could not number all paths that might be in it."""
    paths = [(rank,) for rank in range(100)] + [(99, *[7] * n) for n in range(1, 12)]
    ranks = torch.tensor([[[99, *[7] * 11], [99, *[7] * 10, 6], [98, *[7] * 11]]])
    lengths = tree_acceptance(ranks, torch.full((1, 3), 200), paths).sum(-1)
    assert lengths.tolist() == [[12, 11, 1]]


def test_a_tree_of_drawn_siblings() -> None:
    """A path's chance is the product of its nodes', a level's the sum of its paths'; nodes beyond
    the budget aren't drafted, nor what is below them."""
    paths = ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 0, 0))
    chances = torch.tensor([[0.5, 0.2], [0.4, 0.1], [0.3, 0.9]]).expand(1, 4, 3, 2)
    max_nodes = torch.tensor([[9, 4, 1, 0]])
    found = drawn_tree_acceptance(chances, max_nodes, paths)
    expected = [[0.7, 0.5 * 0.5 + 0.2 * 0.4, 0.2 * 0.4 * 0.3], [0.7, 0.5 * 0.5, 0.0]]
    torch.testing.assert_close(found[0, :2], torch.tensor(expected))
    assert found[0, 2:].tolist() == [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_trees() -> None:
    """By name, planned for rates, given; a plan takes the likeliest paths."""
    rates = [[0.6, 0.22, 0.1], [0.5, 0.3]]
    assert plan_tree(rates, 5) == ((0,), (0, 0), (1,), (0, 1), (1, 0))
    assert tree_from_option("paper", 63, None) == MEDUSA_63
    assert tree_from_option("paper", 5, None) == MEDUSA_63[:5]
    assert tree_from_option("auto", 5, None) == MEDUSA_63[:5]
    assert tree_from_option("planned", 2, rates) == ((0,), (0, 0))
    assert tree_from_option([[0], [1]], 63, None) == ((0,), (1,))
    with pytest.raises(ForetokenError, match=r"node \[1, 2\] but not its parent \[1\]"):
        tree_from_option([[0], [1, 2]], 63, None)
    with pytest.raises(ForetokenError, match="no acceptance rates"):
        tree_from_option("planned", 5, None)
    with pytest.raises(ForetokenError, match="tree is 'oak'"):
        tree_from_option("oak", 5, None)


def test_a_plan_by_few_counts_can_be_grown() -> None:
    """A rank that happened to be right more often than an earlier one takes that along."""
    rates = [[0.5, 0.0, 0.2], [0.1, 0.3]]
    paths = plan_tree(rates, 5)
    assert paths == ((0,), (1,), (2,), (0, 0), (0, 1))
    assert widths_of(paths) == [[3], [2, 0, 0]]


def test_paths_that_fit() -> None:
    """Into so many levels, and into a vocabulary, of which 3 tokens have the ranks 0 to 2."""
    assert fitting_paths(((0,), (2,), (3,), (0, 0)), 1, 3) == ((0,), (2,))
    check_paths([[rank] for rank in range(4096)])
    for wrong in ([[]], [[0], [-1]], [[rank] for rank in range(4097)]):
        with pytest.raises(ForetokenError, match="at most 4096 rank paths"):
            check_paths(wrong)
