"""DFlash's trees: the likeliest paths; what is estimated is served."""

from __future__ import annotations

import itertools

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


def test_the_estimate_is_what_is_served(
    small: Pair, records: Records, learned: BlockModule
) -> None:
    """Steps and accepted places of trees."""
    drafter = DFlashTree(learned, tree_nodes=7, top_k=3)
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
