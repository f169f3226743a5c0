"""Ratios of two measurements of the same prompts, and their intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compared import PROMPTS, Make
from foretoken.bench.record import Answer
from foretoken.bench.report import paired
from foretoken.bench.report.compare import compare
from measured_answers import answer


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Of runs that differ by noise alone, about one in twenty is outside of its 95 % interval."""
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(200):
        units = np.exp(0.3 * rng.standard_normal((30, 2, 5)))
        ends = paired.ratio_interval(units, "speedup", 0.025)
        assert ends is not None
        outside += not ends[0] <= 1 <= ends[1]
    assert 3 <= outside <= 24


def test_many_comparisons_share_the_alarms() -> None:
    """What would be beyond noise alone (2.3 deviations) is not, where it is one of 200."""
    noise = np.random.default_rng(3).standard_normal(40)
    units = np.ones((40, 2, 5))
    units[:, 1, 1] = np.exp(0.3 * (noise - noise.mean()) / noise.std() + 0.11)
    alone, among = (paired.ratio_interval(units, "speedup", 0.025 / n) for n in (1, 200))
    assert alone is not None and among is not None
    assert not alone[0] <= 1 <= alone[1] and among[0] <= 1 <= among[1]


def test_batches_are_the_unit(make: Make) -> None:
    """The same groups are paired; other groups leave only the intervals."""
    a, b = make("a", size=4), make("b", seed=1, size=4)
    found = paired.gather(Answer.parse(x) for x in (a / "samples.jsonl").read_text().splitlines())
    [mine] = [v for k, v in found.items() if k[2] == "pld"]
    units = paired.pair((mine, mine), (mine, mine))
    assert units is not None and units.shape == (PROMPTS // 4, 2, 5)
    assert not compare(a, b).beyond
    mixed = {k: replace(v, group=f"group-{i % 6}") for i, (k, v) in enumerate(mine.items())}
    assert paired.pair((mine, mine), (mixed, mixed)) is None


def test_passes_that_a_server_did_not_count() -> None:
    """There is a speedup, and no acceptance length."""
    answers = [answer(id=i) for i in "ab"]
    known = paired.gather(answers).popitem()[1]
    partly = paired.gather([answers[0], replace(answers[1], passes=0)]).popitem()[1]
    units = paired.pair((known, known), (partly, known))
    assert units is not None and paired.values(units, "speedup") == (1.0, 1.0)
    assert paired.values(units, "mean acceptance length") is None
