"""EAGLE-2: the dynamic tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretoken.drafters.eagle2 import Eagle2
from foretoken.drafters.nothing import Nothing
from foretoken.testing import Pair, serve
from foretoken.train.records import Records
from foretoken.trainable import feature_layer
from foretoken.trainable.eagle import EagleModule
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, PROMPTS, check_estimate, seeded


def test_the_dynamic_tree_takes_the_likeliest(small: Pair) -> None:
    """Budgets bound the tree, and more nodes never accept less at temperature 0."""
    module = seeded(EagleModule, small)
    steps = []
    for nodes in (2, 8, 40):
        drafter = Eagle2(module, tree_nodes=nodes, tree="paper")
        outputs = serve(small.target, drafter, TargetOnly(), PROMPTS, GREEDY)
        assert all(o.stats.drafted <= nodes * o.stats.passes for o in outputs)
        steps.append(sum(o.stats.passes for o in outputs))
    assert steps[0] >= steps[-1]


def test_the_estimate_of_a_chain(small: Pair, records: Records) -> None:
    """With one path a level the tree is a chain, and the estimate is what is served."""
    module = seeded(EagleModule, small)
    drafter = Eagle2(module, depth=3, top_k=1, tree_nodes=1000, tree="paper")
    check_estimate(drafter, module, small.target, records, TargetOnly())


def test_a_large_tree_where_the_context_ends(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer runs on many more nodes than are kept, and has room for them after the last
    token."""
    monkeypatch.setattr(feature_layer, "_SPARE", 64)
    params = replace(GREEDY, max_tokens=5)
    prompt = [1 + i % 7 for i in range(small.target.max_length - 6)]
    drafter = Eagle2(seeded(EagleModule, small), depth=10, top_k=60, tree_nodes=8, tree="paper")
    [plain] = serve(small.target, Nothing(), TargetOnly(), [prompt], params)
    [output] = serve(small.target, drafter, TargetOnly(), [prompt], params)
    assert output.error is None and output.token_ids == plain.token_ids
    assert output.stats.drafted > 0


def test_a_plan_has_no_more_nodes_than_are_grown(small: Pair) -> None:
    """Two levels of three paths have three children, and three each."""
    drafter = Eagle2(seeded(EagleModule, small), depth=2, top_k=3, tree_nodes=50)
    assert drafter._planner._nodes == 12
