"""DFlash 2's trees: the likeliest paths; what is estimated is served."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from foretoken.drafters.dflash2_tree import DFlash2Tree
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.selected_blocks import SelectedModule
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate
from modules import learned_selected_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> SelectedModule:
    """Trained for a few steps, on the very texts."""
    return learned_selected_module(small, records)


def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: SelectedModule
) -> None:
    """Steps and accepted places of trees."""
    drafter = DFlash2Tree(learned, tree_nodes=7, top_k=3)
    total = check_estimate(drafter, learned, small.target, records, TargetOnly())
    assert total.accepted[1] > 0


def test_the_tree_is_of_the_likeliest_paths(small: Pair, learned: SelectedModule) -> None:
    """Against all paths by the product of their tokens' chances, each after the one before it."""
    drafter = DFlash2Tree(learned, top_k=6, tree_nodes=9)
    generator = torch.Generator().manual_seed(0)
    states = 3 * torch.randn(1, 3, small.target.width, generator=generator).double()
    logits, roots = small.target.head(states), torch.tensor([5])
    [tree] = drafter.likeliest(learned, states, roots, logits, [30])
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    chance: dict[tuple[int, ...], float] = {(): 1.0}
    own = learned.candidate_selector.candidates(logits)[1][0].tolist()
    for n in (1, 2, 3):
        for path in itertools.product(*own[:n]):
            before = torch.tensor(path[-2] if n > 1 else 5)
            scores = learned.selected(states[0, n - 1], logits[0, n - 1], before)
            chance[path] = chance[path[:-1]] * float(scores.softmax(-1)[path[-1]])
    wanted = sorted(chance, key=lambda path: -chance[path])[1:10]
    assert paths[1:] == wanted
    assert drafter.likeliest(learned, states, roots, logits, [4])[0].tokens == tree.tokens[:4]
    narrow = DFlash2Tree(learned, top_k=2, tree_nodes=14)
    [tree] = narrow.likeliest(learned, states, roots, logits, [30])
    assert sorted(Counter(tree.parents).values()) == [2] * 7  # two at each of three places


def test_chances_are_those_after_the_token_before(learned: SelectedModule) -> None:
    """Of two places: what is unlikely after the first token is likely after the second."""
    drafter = DFlash2Tree(learned, top_k=2, tree_nodes=4)
    chances = [[[0.6, 0.4], [0.5, 0.5]], [[0.1, 0.9], [0.8, 0.2]]]
    tree = drafter._tree(chances, [[5, 6], [7, 8]], 9)
    assert {*zip(tree.tokens, tree.parents, strict=True)} == {
        (5, 0),
        (6, 0),
        (8, tree.tokens.index(5) + 1),
        (7, tree.tokens.index(6) + 1),
    }
