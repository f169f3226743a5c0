"""Predicted speedups: against a simulation step by step, against other closed forms, by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

import pytest

from bench.measure.test_ideal import run
from foretoken import length
from foretoken.bench.measure import simulate
from foretoken.bench.measure.simulate import Chain, Machine
from foretoken.control.curve import Curve
from foretoken.errors import ForetokenError
from foretoken.trees import plan

CURVE = Curve({1: 30.0, 8: 33.0, 64: 60.0})
STEEP = Machine(lambda batch, tokens: CURVE(tokens), lambda batch, tokens: 0.1 * CURVE(tokens), 0.2)


def step_by_step(
    acceptance: Seq[float], reach: Seq[float], machine: Machine, batch: int, steps: int
) -> float:
    """The speedup of so many steps, each token's fate drawn: the slow and obvious way."""
    draw = random.Random(0)
    tokens, ms = 0, 0.0
    for _ in range(steps):
        longest = 0
        for _ in range(batch):
            fate = draw.random()
            drafted = sum(fate < share for share in reach)
            longest = max(longest, drafted)
            kept = 0
            while kept < drafted and draw.random() < acceptance[kept]:
                kept += 1
            tokens += kept + 1
        ms += machine.target(batch, batch * (longest + 1)) + longest * machine.draft_ms(batch)
        ms += machine.other * machine.target(batch, batch)
    plain_ms = (1 + machine.other) * machine.target(batch, batch)
    return (tokens / ms) / (batch / plain_ms)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("reach", [(1.0, 1.0, 1.0), (0.6, 0.5, 0.2)])
def test_against_step_by_step(batch: int, reach: tuple[float, ...]) -> None:
    """Rates that differ by position, steps without a draft, rows of different length."""
    acceptance = (0.9, 0.6, 0.7)
    chain = Chain((0.9, 0.9 * 0.6, 0.9 * 0.6 * 0.7), reach)
    expected = step_by_step(acceptance, reach, STEEP, batch, 20_000)
    found = simulate.speedup(chain.drafting(3), STEEP, batch)
    assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_against_leviathan(tokens: int) -> None:
    """Theorem 3.8, where a pass of any width costs the same."""
    flat = Machine(lambda batch, tokens: 7.0, lambda batch, tokens: 0.7)
    found = simulate.speedup(simulate.chain_of_rates([0.8]).drafting(tokens), flat)
    assert found == pytest.approx(length.speedup(0.8, tokens, 0.1))


def test_chain_of_rates_against_the_planner() -> None:
    """A chain is the tree of first children; after the list's end the last rate goes on."""
    drafting = simulate.chain_of_rates([0.7]).drafting(5)
    paths = [(0,) * depth for depth in range(1, 6)]
    assert drafting.tokens == pytest.approx(plan.expected_tokens(paths, [0.7]))
    uneven = simulate.chain_of_rates([0.9, 0.5]).drafting(3)
    assert uneven.tokens == pytest.approx(1 + 0.9 + 0.9 * 0.5 + 0.9 * 0.5**2)


def test_best_chain_is_the_best_of_all() -> None:
    """Shorter in large batches, and none where nothing pays."""
    chain = simulate.chain_of_rates([0.8])
    lengths = []
    for batch in (1, 4, 64):
        best = simulate.best_chain(chain, STEEP, batch)
        every = [simulate.speedup(chain.drafting(n), STEEP, batch) for n in range(17)]
        assert best.speedup == max(every)
        assert every[best.depth] == best.speedup
        lengths.append(best.depth)
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
    dear = Machine(STEEP.target, STEEP.target)
    assert simulate.best_chain(chain, dear, 1).speedup == 1.0


def test_best_tree_is_as_fast_as_it_says() -> None:
    """The planner's tokens a second are the ones predicted for its tree."""
    best = simulate.best_tree_for([0.6, 0.2, 0.1], STEEP, 2)
    target = {n: STEEP.target(2, 2 * (n + 1)) + 0.2 * STEEP.target(2, 2) for n in range(65)}
    tree = plan.fastest_tree([0.6, 0.2, 0.1], target, STEEP.draft_ms(2), nodes=64, depth=16)
    assert best.nodes == len(tree.paths) > best.depth == tree.depth
    assert best.tokens_per_second == pytest.approx(2 * tree.tokens_per_second)
    asked, depth = simulate.tree([0.6, 0.2, 0.1], 6, 3)
    assert simulate.speedup(asked, STEEP, 2) <= best.speedup and depth <= 3
    assert asked.mean_nodes == 6


def test_a_run_again() -> None:
    """From a run's counts: its own speedup, and what shorter drafts would have brought."""
    part = run("pld", 1.9, {"0": 4, "1": 1, "3": 5}, acceptance_rate_per_position=[0.8, 0.6, 0.4])
    chain = simulate.measured_chain(part)
    assert chain == Chain((0.8, 0.6, 0.4), (0.6, 0.5, 0.5))
    assert chain.drafting(2).tokens == pytest.approx(1 + 0.6 * 0.8 + 0.5 * 0.6)
    assert chain.drafting(2).nodes == pytest.approx({0: 0.4, 1: 0.1, 2: 0.5})
    own = simulate.measured_drafting(part)
    assert (own.tokens, own.levels) == (1.9, None)
    assert own.nodes == pytest.approx({0: 0.4, 1: 0.1, 3: 0.5})


def test_a_run_with_trees() -> None:
    """Its drafts can't be cut to other lengths, and it drafts by levels."""
    part = run("eagle", 3.0, {"0": 1, "20": 9})
    assert simulate.measured_chain(part) is None
    assert simulate.measured_drafting(part).levels == 4
    ms = simulate.step_ms(simulate.measured_drafting(part), STEEP, 1)
    assert ms == pytest.approx(0.9 * (CURVE(21) + 4 * 3) + 0.1 * 30 + 0.2 * 30)


def test_a_run_that_can_not_be_told() -> None:
    """A server that counts no drafts did not draft for nothing; no steps are no run."""
    with pytest.raises(ForetokenError, match="how many were drafted"):
        simulate.measured_drafting(run("server", 2.5, {"0": 10}))
    with pytest.raises(ForetokenError, match="no decoding steps"):
        simulate.measured_drafting(run("pld", 1.0, {}))
    old = run("pld", 2.0, {"4": 2})
    del old["nodes_per_step"]
    with pytest.raises(ForetokenError, match="measure again"):
        simulate.measured_drafting(old)


def test_roofline() -> None:
    """Bytes for small passes, products for large ones, the cache for each sequence."""
    cost = simulate.roofline(7e9, 2, 2000, 280)
    assert cost(1, 1) == cost(1, 8) == pytest.approx(7.0)
    assert cost(64, 280) == pytest.approx(2 * 7e9 * 280 / 280e12 * 1000)
    cached = simulate.roofline(7e9, 2, 2000, 280, kv_bytes_per_token=5e5, context=2000)
    assert cached(4, 4) == pytest.approx(7.0 + 4 * 0.5)


LINE = "--curve 1:30"
