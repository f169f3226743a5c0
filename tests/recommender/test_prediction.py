"""Speedups predicted from screened answers."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from foretoken.bench.measure.costs import Costs
from foretoken.bench.measure.metrics import measure
from foretoken.bench.record import BASELINE, Measured
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.prediction import Prediction, most_promising, predict
from foretoken.recommender.served import Cell
from measured_answers import answer

FLAT = {str(tokens): 10.0 for tokens in (1, 2, 4, 8, 16, 32, 64)}
COSTS: Costs = {
    "context": 8,
    "repeats": 1,
    "bandwidth_gb_s": 1.0,
    "target": {
        "weight_bytes": 1,
        "kv_bytes": 1,
        "passes": [
            {"batch_size": 1, "ms": FLAT},
            {"batch_size": 4, "ms": {str(n): 2.5 * n for n in (4, 8, 16, 32)}},
        ],
    },
    "drafts": {},
}
CHAIN = Candidate("sps small", {"method": "sps", "num_speculative_tokens": 4}, any_length=True)


def pair(draft_ms: float, right: Seq[int] = (10, 10, 0, 0)) -> tuple[Measured, Measured]:
    """Ten steps of four drafted tokens, of which the first two are always right and the others
    never, or right so often; a drafted token takes `draft_ms`."""
    common = {"prefill": 0.0, "other": 0.0, "ttft": 0.0, "total": 1.0}
    own = answer(
        token_ids=list(range(10 + sum(right))),
        passes=10,
        engine_steps=10,
        drafted=10 * len(right),
        drafted_at=[10] * len(right),
        accepted_at=list(right),
        seconds={**common, "draft": 10 * len(right) * draft_ms / 1000, "verify": 0.1},
    )
    plain = answer(
        method=BASELINE,
        token_ids=list(range(30)),
        passes=30,
        engine_steps=30,
        drafted=0,
        drafted_at=[],
        accepted_at=[],
        seconds={**common, "draft": 0.0, "verify": 0.3},
    )
    return measure([own], [plain]), measure([plain], [plain])


def test_the_best_length_of_a_chain() -> None:
    """Two tokens are worth drafting; each takes a tenth of a pass, so 3 tokens in 1.2 passes."""
    found = predict(CHAIN, {0.0: pair(1.0)}, COSTS, [1])
    assert found.label == "sps small" and found.best.label == "sps small, 2 tokens"
    assert found.best.config["num_speculative_tokens"] == 2
    assert found.speedups == {Cell(1, 0.0): pytest.approx(3 / 1.2)}


def test_batches_and_temperatures() -> None:
    """A pass over more tokens costs as many times as much at batch 4, where two drafted tokens
    lose: one length serves both, and each cell has its speedup."""
    found = predict(CHAIN, {0.0: pair(1.0), 1.0: pair(2.0)}, COSTS, [1, 4])
    length = found.best.config["num_speculative_tokens"]
    assert length == 1 or length == 2
    assert set(found.speedups) == {Cell(b, t) for b in (1, 4) for t in (0.0, 1.0)}
    assert found.speedups[Cell(1, 0.0)] > found.speedups[Cell(1, 1.0)] > 1
    assert found.speedups[Cell(4, 0.0)] < 1


def test_its_own_length() -> None:
    """A length that isn't free is taken as it was measured: 3 tokens in 1.4 passes."""
    own = Candidate("mine", CHAIN.config)
    found = predict(own, {0.0: pair(1.0)}, COSTS, [1])
    assert found.best == own and found.speedups[Cell(1, 0.0)] == pytest.approx(3 / 1.4)


def test_drafting_that_costs_too_much() -> None:
    found = predict(CHAIN, {0.0: pair(30.0)}, COSTS, [1])
    assert found.hopeless and found.best.config["num_speculative_tokens"] == 1


def promising(**speedups: tuple[float, float]) -> list[Prediction]:
    cells = Cell(1, 0.0), Cell(4, 0.0)
    return [
        Prediction(name, Candidate(name, {}), dict(zip(cells, own, strict=True)))
        for name, own in speedups.items()
    ]


def test_cells_choose_in_turn() -> None:
    """The best at batch 4 is taken before the second at batch 1; the hopeless only if alone."""
    some = promising(a=(2.0, 0.5), b=(1.9, 0.6), c=(0.5, 1.1), d=(0.7, 0.7))
    assert [one.label for one in most_promising(some, 2)] == ["a", "c"]
    assert [one.label for one in most_promising(some, 4)] == ["a", "c", "b"]
    assert [one.label for one in most_promising(some[3:], 2)] == ["d"]
    assert most_promising([], 2) == []


def test_one_length_serves_all_temperatures() -> None:
    """Of a draft that was longer at one of them no more is known at the other."""
    long, short = pair(0.1, (10, 10, 10, 10)), pair(0.1, (10, 10))
    for screened, length in (({0.0: long}, 4), ({0.0: long, 1.0: short}, 2)):
        found = predict(CHAIN, screened, COSTS, [1])
        assert found.best.config["num_speculative_tokens"] == length


def test_steps_without_a_draft_take_no_time_to_draft() -> None:
    """Of ten steps half have a tree of two levels, which took 20 ms in all."""
    common = {"prefill": 0.0, "other": 0.0, "ttft": 0.0, "total": 1.0}
    own = answer(
        token_ids=list(range(15)),
        passes=10,
        engine_steps=10,
        drafted=40,
        drafted_at=[5, 5],
        accepted_at=[5, 0],
        seconds={**common, "draft": 0.02, "verify": 0.1},
    )
    plain = answer(
        method=BASELINE,
        token_ids=list(range(15)),
        passes=15,
        engine_steps=15,
        drafted=0,
        drafted_at=[],
        accepted_at=[],
        seconds={**common, "draft": 0.0, "verify": 0.15},
    )
    screened = {0.0: (measure([own], [plain]), measure([plain], [plain]))}
    found = predict(Candidate("tree", {"method": "medusa"}), screened, COSTS, [1])
    assert found.speedups[Cell(1, 0.0)] == pytest.approx(1.5 / 1.2)


def test_the_mean_is_one_of_factors() -> None:
    """Twice as fast here and half as fast there is no gain."""
    [one] = promising(a=(2.0, 0.5))
    assert one.mean == pytest.approx(1.0)


def test_a_method_that_drafted_nothing() -> None:
    """It is as fast as plain decoding, and no division by its drafts is made."""
    own, plain = pair(0.0, ())
    found = predict(Candidate("pld", {"method": "pld"}), {0.0: (own, plain)}, COSTS, [1])
    assert found.speedups == {Cell(1, 0.0): pytest.approx(1.0)}
