"""DFlash's trees: the likeliest paths; what is estimated is served."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from foretoken.drafters.dflash_tree import DFlashTree
from foretoken.testing import Pair
from foretoken.train.records import Records
from foretoken.trainable.block_layers import BlockModule
from foretoken.verify.target_only import TargetOnly
from lessons import check_estimate
from modules import learned_block_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> BlockModule:
    """Trained for a few steps, on the very texts."""
    return learned_block_module(small, records)


@pytest.mark.parametrize("most", [None, 2])
def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: BlockModule, most: int | None
) -> None:
    """Steps and accepted places of trees, of all of a block's places and of fewer."""
    drafter = DFlashTree(learned, tree_nodes=7, top_k=3, num_speculative_tokens=most)
    total = check_estimate(drafter, learned, small.target, records, TargetOnly())
    assert total.accepted[1] > 0


def test_the_tree_is_of_the_likeliest_paths(small: Pair, learned: BlockModule) -> None:
    """Against all paths by the product of their tokens' chances."""
    drafter = DFlashTree(learned, top_k=6, tree_nodes=9)
    logits = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0)).double()
    given = (learned, logits, torch.tensor([0]), logits)
    [tree] = drafter.likeliest(*given, [30])
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    distributions = logits[0].softmax(-1)
    chance = {
        path: float(torch.stack([distributions[i, x] for i, x in enumerate(path)]).prod())
        for n in (1, 2, 3)
        for path in itertools.product(range(6), repeat=n)
    }
    assert paths[1:] == sorted(chance, key=lambda path: -chance[path])[:9]
    assert drafter.likeliest(*given, [4])[0].tokens == tree.tokens[:4]
    [narrow] = DFlashTree(learned, top_k=2, tree_nodes=14).likeliest(*given, [30])
    assert sorted(Counter(narrow.parents).values()) == [2] * 7  # two at each of three places
