"""SWIFT: the search for the best set of layers while it serves."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import SamplingParams
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters import swift
from foretoken.drafters.auto import Auto
from foretoken.drafters.swift import Search, Swift, _width, upper_bounds
from foretoken.draws import GreedyDraws
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.models import layer_set
from foretoken.models.drafting.self_model import SelfModel
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.testing import serve
from foretoken.testing.checks import PROMPTS
from foretoken.testing.models import Pair, tiny_pair
from foretoken.tree import DraftTree
from foretoken.verify.target_only import TargetOnly
from partial_target import GREEDY, LAYERS, begun


def test_search_while_serving(deep: Pair, tmp_path: Path) -> None:
    """SWIFT finds the set that its windows agree with most, keeps it, saves it and forgets it."""
    settings = Swift(context_window=4, max_opt_iter=40)
    target = ModelTarget(deep.target, 4, 128)
    engine = Engine(target, settings, TargetOnly())
    for prompt in PROMPTS:
        engine.add(prompt, dataclasses.replace(GREEDY, max_tokens=100))
    while engine.busy:
        engine.step()
    search = settings.shared
    assert len(search.tried) > 5
    assert search.tried[0][0] == layer_set.every_second(LAYERS)
    assert all(len(each) == 1 for each, _ in search.tried[1:])  # int(0.45 · 4)
    assert search.score == max(score for _, score in search.tried)
    assert (search.best, search.score) in search.tried
    search.save(tmp_path / "set")
    best = search.best
    search.reset()
    assert (search.best, search.tried) == (layer_set.every_second(LAYERS), [])
    search.load(tmp_path / "set")
    assert search.best == best == search.candidate()


def test_when_the_search_ends(deep: Pair) -> None:
    """At a good enough score, after too many that were no better, or after all it may try."""
    target = ModelTarget(deep.target, 1, 8)
    search = Search(target, Swift(max_tolerance_iter=3, max_opt_iter=5))
    search.learn((2,), 0.96)
    assert search.candidate() is None
    search.reset()
    for score in (0.5, 0.4, 0.5, 0.1):
        assert search.candidate() is not None
        search.learn((2,), score)
    assert search.candidate() is None
    search.reset()
    for score in (0.1, 0.2, 0.3, 0.4, 0.5):
        assert search.candidate() is not None
        search.learn((2,), score)
    assert search.candidate() is None and len(search.tried) == 5
    assert Search(ModelTarget(tiny_pair().target, 1, 8), Swift()).candidate() is None


def test_a_small_share_leaves_out_one(deep: Pair) -> None:
    """Where it is less than one sub-layer, the search tries sets of one and doesn't end at once."""
    search = Search(ModelTarget(deep.target, 1, 8), Swift(skip_ratio=0.1))
    assert search.candidate() == layer_set.every_second(LAYERS)
    search.learn(layer_set.every_second(LAYERS), 0.1)
    candidate = search.candidate()
    assert candidate is not None and len(candidate) == 1


def test_upper_bounds_prefer_what_is_good_or_unknown() -> None:
    """Of two points as far from what was tried the one near the better is rated higher, and of two
    as good the one farther away."""
    known = np.array([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0]])
    asked = np.array([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0], [0, 1.0, 1, 1, 1, 0]])
    good, bad, far = upper_bounds(known, np.array([0.9, 0.1]), asked)
    assert good > bad
    assert far > good


def test_settings_that_cannot_be() -> None:
    """Options out of range are refused when the drafter is made or bound."""
    with pytest.raises(ForetokenError):
        Swift(context_window=1)
    with pytest.raises(ForetokenError):
        Swift(skip_ratio=1.0)
    with pytest.raises(ForetokenError, match=r"skip_ratio is 0\.0; it must be above 0"):
        Swift(skip_ratio=0.0)
    with pytest.raises(ForetokenError):
        Swift(opt_interval=0)


def test_siblings_at_a_place() -> None:
    """More the less sure the drafter is, and more of them when greedy, as the paper's code has
    them."""
    greedy, warm = (Sequence.start([1], SamplingParams(temperature=t)) for t in (0, 1))
    sure = (0.99, 0.9, 0.6, 0.2)
    assert [_width(confidence, greedy) for confidence in sure] == [3, 5, 8, 10]
    assert [_width(confidence, warm) for confidence in sure] == [1, 3, 5, 10]


def test_a_long_search_takes_little_memory() -> None:
    """A thousand sets of a model of 28 layers: tens of megabytes, not their square times 52."""
    random = np.random.default_rng(0)
    sets = (random.random((1256, 52)) < 0.45).astype(float)
    tracemalloc.start()
    try:
        bounds = upper_bounds(sets[:1000], random.random(1000), sets[1000:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bounds.shape == (256,) and np.isfinite(bounds).all()
    assert peak < 100 * 2**20


def test_it_searches_where_it_drafts(deep: Pair) -> None:
    """As a part of `auto` that doesn't pay it makes no pass."""
    params = dataclasses.replace(GREEDY, max_tokens=60)
    for curve, searches in (({1: 10.0, 2: 19.0, 64: 600.0}, False), ({1: 10.0, 64: 10.1}, True)):
        swift = Swift(context_window=4)
        costs = CostModel(curve, {"swift": DraftCost(level=0.01)}, fixed=True)
        drafter = Auto([swift], names=["swift"], costs=costs)
        serve(deep.target, drafter, TargetOnly(), PROMPTS[:1], params)
        assert bool(swift.shared.tried) is searches


def drafted(deep: Pair, params: SamplingParams) -> DraftTree:
    """A draft after a prompt that was read."""
    target, drafter = ModelTarget(deep.target, 1, 128), Swift(num_speculative_tokens=4)
    target.bind(drafter)
    one = Sequence.start(PROMPTS[0], params)
    target.begin(one)
    drafter.begin(one)
    while target.pending(one):
        prefill(target, drafter, [one], 64)
    return drafter.draft([one], [12], GreedyDraws())


def test_what_may_not_be_written_is_not_drafted(deep: Pair) -> None:
    """Neither on the chain nor beside it: it would only be rejected, with all below it."""
    free = drafted(deep, GREEDY)
    token = int(free.tokens[0, 0])
    bound = drafted(deep, dataclasses.replace(GREEDY, bad_token_ids=[token]))
    assert bound.counts[0] and token not in bound.tokens.tolist()[0]
    few = drafted(deep, dataclasses.replace(GREEDY, allowed_token_ids=[3, 5]))
    assert {*few.tokens.tolist()[0]} == {3, 5}


def test_no_distribution_ends_the_chain(deep: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target may be fine where a part of it overflows."""
    run = SelfModel.root_logits
    monkeypatch.setattr(SelfModel, "root_logits", lambda *given: run(*given) * torch.nan)
    assert drafted(deep, GREEDY).counts == [0]


@torch.inference_mode()
def test_steps_that_others_draft_for_test_nothing(deep: Pair) -> None:
    """Also where it has drafted before."""
    swift, target = Swift(context_window=4), ModelTarget(deep.target, 1, 128)
    target.bind(swift)
    [one] = begun(target, PROMPTS[0])
    swift.begin(one)
    while not swift.shared.tried:
        steps = step(target, swift, TargetOnly(), [one], [4])
    swift.observe([one], steps)
    assert len(swift.shared.tried) == 1


@torch.inference_mode()
def test_a_score_is_the_share_that_was_predicted(deep: Pair, monkeypatch: Any) -> None:
    """All of what the target wrote greedily, where nothing is left out."""
    swift, target = Swift(context_window=4), ModelTarget(deep.target, 1, 128)
    target.bind(swift)
    monkeypatch.setattr(swift.shared, "candidate", lambda: ())
    [one] = begun(target, PROMPTS[0])
    swift.begin(one)
    while len(swift.shared.tried) < 3:
        step(target, swift, TargetOnly(), [one], [4])
    assert {score for _, score in swift.shared.tried} == {1.0} and len({*one.output}) > 1


def test_every_nth_candidate_is_the_best_by_the_bound(deep: Pair, monkeypatch: Any) -> None:
    """Of many that are drawn; the others are drawn alone."""
    pools: list[int] = []

    def bounds(tried: Any, scores: Any, points: Any) -> Any:
        pools.append(len(points))
        return points[:, 2]  # whether the third of the sub-layers 2 to 5 is left out

    monkeypatch.setattr(swift, "upper_bounds", bounds)
    search = Search(ModelTarget(deep.target, 1, 8), Swift(bayes_interval=2))
    for _ in range(4):
        candidate = search.candidate()
        assert candidate is not None
        search.learn(candidate, 0.1)
    assert search.tried[2] == ((4,), 0.1) and pools == [256]


def test_a_search_begins_again_as_it_began(deep: Pair, tmp_path: Path) -> None:
    """After a reset with the same sets, and after loading one with that, whatever was tried."""
    search = Search(ModelTarget(deep.target, 1, 8), Swift())

    def candidates() -> list[Any]:
        for score in range(12):
            search.learn(search.candidate() or (), score / 100)
        return [left_out for left_out, _ in search.tried]

    first = candidates()
    search.reset()
    assert candidates() == first
    search.save(tmp_path / "set")
    best = search.best
    search.learn((3,), 0.99)
    search.load(tmp_path / "set")
    assert search.tried == [] and search.candidate() == search.best == best


@torch.inference_mode()
def test_a_candidate_every_few_steps(deep: Pair) -> None:
    """Not at each step, whose pass it adds to."""
    swift = Swift(context_window=4, opt_interval=3, max_score=1.0)
    target = ModelTarget(deep.target, 1, 128)
    target.bind(swift)
    [one] = begun(target, PROMPTS[0])
    swift.begin(one)
    for _ in range(12):
        step(target, swift, TargetOnly(), [one], [4])
    assert 0 < len(swift.shared.tried) <= 4


def test_bounds_follow_the_scores_scale() -> None:
    """Where all scores are alike, a small difference is as large as one among unlike scores."""
    random = np.random.default_rng(0)
    known, asked = (random.integers(0, 2, (n, 8)).astype(float) for n in (6, 9))
    scores = random.random(6)
    bounds = upper_bounds(known, scores, asked)
    np.testing.assert_allclose(upper_bounds(known, 0.1 * scores + 0.3, asked), 0.1 * bounds + 0.3)
