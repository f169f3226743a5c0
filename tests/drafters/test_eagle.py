"""EAGLE: what is estimated is served."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import SamplingParams
from foretoken.drafters.eagle import TREE, Eagle
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, serve
from foretoken.train.records import Records
from foretoken.trainable import feature_layer
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.feature_layer import FeatureModel
from foretoken.verify.multi_candidate import MultiCandidate
from lessons import PROMPTS, check_estimate, check_expectation, late, seeded


@pytest.mark.parametrize("tree", [TREE, ((0,), (0, 0), (0, 0, 0)), ((0,), (1,), (1, 0))])
def test_the_estimate_is_what_is_served(small: Pair, records: Records, tree: Any) -> None:
    """Each step's acceptance, the drafter's own states along the text included."""
    module = seeded(EagleModule, small)
    check_estimate(Eagle(module, tree=tree), module, small.target, records, MultiCandidate())


def test_the_expectation_of_drawn_trees(small: Pair) -> None:
    """Above temperature 0, where siblings are drawn without replacement."""
    module = seeded(EagleModule, small)
    check_expectation(Eagle(module), module, small.target, MultiCandidate())


def test_states_that_wait_are_bounded(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long others draft; then it drafts as if it had read all of them at once."""
    waiting: list[int] = []
    known = FeatureModel.observe

    def noted(self: Any, sequences: Any, steps: Any) -> None:
        known(self, sequences, steps)
        waiting.extend(len(s.state[self].waiting) for s in sequences)

    monkeypatch.setattr(FeatureModel, "observe", noted)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

    def run(most: int) -> Any:
        waiting.clear()
        monkeypatch.setattr(feature_layer, "_MOST_WAITING", most)
        drafter = late(Eagle)(seeded(EagleModule, small))
        outputs = serve(small.target, drafter, MultiCandidate(), PROMPTS[:2], params)
        return [(o.token_ids, o.outputs[0].accepted) for o in outputs]

    few = run(8)
    assert max(waiting) <= 8 and any(any(accepted) for _, accepted in few)
    assert few == run(10_000) and max(waiting) > 20


def test_fewer_levels_than_the_tree_has(small: Pair) -> None:
    """All its nodes of so many levels; a tree of one path is a chain."""
    module = seeded(EagleModule, small)
    drafter = Eagle(module, num_speculative_tokens=2)
    drafter.bind(ModelTarget(small.target, 1, 32))
    assert drafter.nodes == sum(len(path) <= 2 for path in TREE) < len(TREE)
    assert drafter.trees and not Eagle(module, tree=((0,), (0, 0))).trees
