"""Trees of drafters around one layer."""

from __future__ import annotations

import torch

from foretoken.drafters.shared.feature_trees import GivenTree, in_beam
from foretoken.trees.grow import Frontier, beam


def test_a_text_is_where_the_beam_finds_it() -> None:
    """Where distributions depend on the level alone, a path is said to be in the tree just if it
    is."""
    random = torch.Generator().manual_seed(5)
    distributions = (2 * torch.randn(40, 3, 7, generator=random)).softmax(-1)
    goal = torch.multinomial(distributions.flatten(0, 1), 1, generator=random).view(40, 3)
    nodes = torch.randint(0, 22, (40,), generator=random)
    found = in_beam(distributions, goal, 3, nodes)

    def ask(frontier: Frontier) -> torch.Tensor:
        return distributions[:, frontier.depth, None].expand(-1, frontier.slots.shape[1], -1)

    tree = beam(ask, 3, 3, nodes.tolist(), torch.device("cpu"))
    for b in range(40):
        paths: list[tuple[int, ...]] = [()]
        for node in range(int(tree.counts[b])):
            paths.append((*paths[int(tree.parent_slots[b, node])], int(tree.tokens[b, node])))
        wanted = [tuple(goal[b, : n + 1].tolist()) in paths for n in range(3)]
        assert found[b].tolist() == wanted
    assert found[:, 0].any() and found[:, 2].any() and not found.all()


def test_a_tree_fits_its_vocabulary() -> None:
    """Ranks that there are no tokens for are left out, with what is below them."""
    tree = GivenTree([(0,), (1,), (2,), (0, 0), (2, 0)])
    assert [tree.fitted(size).nodes for size in (9, 3, 2, 1)] == [5, 5, 3, 2]
