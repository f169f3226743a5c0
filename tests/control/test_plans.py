"""The fastest step of a batch, against every step that there is."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import product

import numpy as np
import pytest

from foretoken.control.choice import Choice, Row
from foretoken.control.controller import Controller
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.control.plans import Packed, Padded
from foretoken.control.rates import History, Rates, chain

MOST = 5


def some_gains(random: np.random.Generator, rows: int) -> list[list[float]]:
    """Of drafts of 0 to 5 nodes, each less probable than the one before it."""
    gains = []
    for length in random.integers(0, MOST + 1, rows):
        chances = random.random(length).cumprod()
        gains.append([0.0, *chances.cumsum().tolist()])
    return gains


def some_costs(random: np.random.Generator, packed: bool) -> CostModel:
    curve = {1: 10.0, 8: 10 + 8 * random.random(), 24: 30 + 40 * random.random()}
    return CostModel(curve, {}, packed=packed, fixed=True)


def tokens(
    gains: Seq[list[float]], own: Seq[list[float]], nodes: Seq[int], who: Seq[bool]
) -> float:
    """Of a step in which each sequence takes so many nodes of its copy, or of what is computed."""
    taken = zip(gains, own, nodes, who, strict=True)
    return len(gains) + sum((b if own else a)[n] for a, b, n, own in taken)


def usual(costs: CostModel, random: np.random.Generator) -> tuple[Packed, float]:
    """A planner for batches of three that usually write so many tokens a millisecond."""
    planner, ratio = Packed(costs, MOST), 1 + float(random.random())
    planner.count(ratio, 1.0, 10**6)
    return planner, 3 * ratio / costs.curve(3)


def test_the_fastest_copies_with_padding() -> None:
    """No other length of three sequences' copies yields more tokens a millisecond."""
    random = np.random.default_rng(5)
    for _ in range(60):
        costs, gains = some_costs(random, False), some_gains(random, 3)
        plan = Padded(costs, MOST).copying(gains, 0.0)
        fastest = max(
            tokens(gains, gains, nodes, [False] * 3) / costs.curve(costs.size(nodes))
            for nodes in product(*(range(len(own)) for own in gains))
        )
        assert plan.speed >= (1 - 1e-9) * fastest


def test_the_best_copies_without_padding() -> None:
    """Nothing else yields more tokens beyond those that are usually written in its time; the
    sequences take different lengths."""
    random, different = np.random.default_rng(5), 0
    for _ in range(60):
        costs, gains = some_costs(random, True), some_gains(random, 3)
        planner, rate = usual(costs, random)
        plan = planner.copying(gains, 0.0)
        best = max(
            tokens(gains, gains, nodes, [False] * 3) - rate * costs.curve(costs.size(nodes))
            for nodes in product(*(range(len(own)) for own in gains))
        )
        assert plan.tokens == pytest.approx(tokens(gains, gains, plan.nodes, [False] * 3))
        assert plan.ms == pytest.approx(costs.curve(3 + sum(plan.nodes)))
        assert plan.copying_ms == pytest.approx(plan.ms - costs.curve(3))
        assert plan.tokens - rate * plan.ms >= best - 1e-9
        different += len({*plan.nodes}) > 1
    assert different > 10


def test_the_best_step_with_a_model_besides() -> None:
    """Nearly as good as the best of all combinations of who copies how much, for whom something is
    computed, and how much; at times better than copies alone."""
    random, computed, lost = np.random.default_rng(7), 0, []
    for _ in range(60):
        costs, gains = some_costs(random, True), some_gains(random, 3)
        chance, level = random.random(2)
        own = [[0.0, *np.cumsum(chance ** np.arange(1, 5)).tolist()]] * 3
        drafting = [level * n for n in range(5)]
        planner, rate = usual(costs, random)
        copies = planner.copying(gains, 0.0)
        plan = planner.computing(gains, copies, own, drafting, 0.0)
        time = costs.curve(costs.size(plan.nodes)) + drafting[computing(plan.nodes, plan.computes)]
        assert plan.ms == pytest.approx(time)
        assert plan.tokens == pytest.approx(tokens(gains, own, plan.nodes, plan.computes))
        whole, shared = 3 + sum(plan.nodes), zip(plan.nodes, plan.computes, strict=True)
        copied = sum(nodes for nodes, computed in shared if not computed)
        assert plan.copying_ms == pytest.approx(costs.curve(whole) - costs.curve(whole - copied))
        best = max(
            tokens(gains, own, nodes, who)
            - rate * (costs.curve(costs.size(nodes)) + drafting[computing(nodes, who)])
            for who in product((False, True), repeat=3)
            for nodes in product(*(range(len((own if who[r] else gains)[r])) for r in range(3)))
        )
        lost.append((best - plan.tokens + rate * plan.ms) / plan.tokens)
        computed += any(plan.computes)
    assert computed > 10 and max(lost) < 0.04 and sum(lost) / len(lost) < 0.004


def computing(nodes: Seq[int], who: Seq[bool]) -> int:
    """The longest of the computed drafts."""
    return max(count * own for count, own in zip(nodes, who, strict=True))


def chosen(packed: bool) -> Choice:
    """Of eight sequences, of which one has a copy that is surely right."""
    costs = CostModel({1: 10.0, 64: 73.0}, {"0": DraftCost(call=0.01)}, packed=packed, fixed=True)
    control = Controller(["0"], [], costs, most=MOST)
    known = Rates()
    for evidence in range(len(known.tested)):
        known.tested[evidence], known.accepted[evidence] = [1000.0] * MOST, [999.0] * MOST
    control.rates = [known]
    rows = [Row(64, [History()], {0: chain(MOST)} if row == 3 else {}) for row in range(8)]
    return control.choose(rows)


def test_reading_the_cache_takes_its_time() -> None:
    """Where a pass reads much of the cache anyway, longer drafts pay."""
    curve, drafts = {1: 10.0, 64: 73.0}, {"0": DraftCost(call=0.01)}
    costs = CostModel(curve, drafts, packed=True, per_cell=0.01, fixed=True)
    gains = [[0.0, 0.5, 0.75, 0.875]] * 2
    for planner in (Padded(costs, MOST), Packed(costs, MOST)):
        short, long = (planner.copying(gains, reading) for reading in (0.0, 40.0))
        assert sum(short.nodes) < sum(long.nodes)
        assert long.ms == pytest.approx(40 + costs.curve(2 + sum(long.nodes)))
    control = Controller(["0"], [], costs, most=MOST)
    rows = [Row(64, [History()], length=length) for length in (100, 300)]
    assert control.choose(rows).ms == pytest.approx(costs.curve(2) + 4.0)


def test_one_sequences_copy_in_a_large_batch() -> None:
    """It pays where the other sequences aren't padded to its length, and only there."""
    assert chosen(packed=True).nodes == [0, 0, 0, MOST, 0, 0, 0, 0]
    assert chosen(packed=False).nodes == [0] * 8


def test_a_node_waits_for_those_before_it() -> None:
    """Also where it is more probable than they are, as in a second branch: what is expected of so
    many nodes is what the first ones bring."""
    costs = CostModel({1: 10.0, 2: 10.01, 3: 10.1, 4: 30.0}, {}, packed=True, fixed=True)
    plan = Packed(costs, MOST).copying([[0.0, 0.1, 0.9], [0.0, 0.5]], 0.0)
    assert plan.nodes == [0, 1] and plan.tokens == pytest.approx(2.5)


def test_what_steps_usually_yield_is_learned_anew() -> None:
    """A node that was worth its time while little was written isn't once much is, however long it
    had been little."""
    planner = Packed(CostModel({1: 10.0, 2: 13.0}, {}, packed=True, fixed=True), MOST)
    planner.count(1.0, 1.0, 1000)
    assert planner.copying([[0.0, 0.5]], 0.0).nodes == [1]
    for _ in range(200):
        planner.count(3.0, 1.0)
    assert planner.copying([[0.0, 0.5]], 0.0).nodes == [0]


def test_a_copy_that_is_longer_than_what_is_computed() -> None:
    """Where padding is computed it makes the pass wider by what it is longer, and pays for that."""
    costs = CostModel({1: 10.0, 64: 73.0}, {}, fixed=True)
    planner, gains, own = Padded(costs, MOST), [[0.0, 0.9, 1.8, 2.7], [0.0]], [[0.0, 0.9]] * 2
    plan = planner.computing(gains, planner.copying(gains, 0.0), own, [0.0, 0.1], 0.0)
    assert (plan.nodes, plan.computes) == ([3, 1], [False, True])
    assert plan.tokens == pytest.approx(5.6) and plan.ms == pytest.approx(costs.curve(8) + 0.1)
    assert plan.copying_ms == pytest.approx(costs.curve(8) - costs.curve(4))


def test_drafts_of_a_single_node() -> None:
    """What a node costs is not looked up beyond the largest pass."""
    costs = CostModel({1: 10.0, 64: 11.0}, {}, packed=True, fixed=True)
    planner, gains = Packed(costs, 1), [[0.0]] * 2
    copies = planner.copying(gains, 0.0)
    plan = planner.computing(gains, copies, [[0.0, 0.9]] * 2, [0.0, 0.1], 0.0)
    assert (plan.nodes, plan.computes) == ([1, 1], [True, True])


def test_the_longest_draft_that_can_be_computed_counts() -> None:
    """Also where another sequence has room for less."""
    costs = CostModel({1: 10.0, 64: 11.0}, {}, packed=True, fixed=True)
    planner, gains, own = Packed(costs, MOST), [[0.0]] * 2, [[0.0, 0.9, 1.8, 2.7], [0.0, 0.9]]
    copies = planner.copying(gains, 0.0)
    plan = planner.computing(gains, copies, own, [0.0, 0.1, 0.2, 0.3], 0.0)
    assert (plan.nodes, plan.computes) == ([3, 1], [True, True])
