"""Ratios of two measurements of the same prompts, and their intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def test_what_is_paired() -> None:
    """Turns and members of a group are summed; what one of the four lacks, or failed at, and what
    is left out, counts in none."""

    def run(tokens: int, **changed: Any) -> paired.Prompts:
        found = {
            name: paired.Prompt(group, tokens * (place + 1), 2.0 * tokens, 3.0 * tokens)
            for place, (name, group) in enumerate(zip("abcde", "xxyzz", strict=True))
        }
        return {name: prompt for name, prompt in (found | changed).items() if prompt is not None}

    before, after = (run(1), run(10)), (run(100), run(1000))
    [ab, c, de] = np.moveaxis(np.asarray(paired.pair(before, after)), 0, 0)
    assert ab.tolist() == [[3, 4, 6, 30, 40], [300, 400, 600, 3000, 4000]]
    assert c.tolist() == [[3, 2, 3, 30, 20], [300, 200, 300, 3000, 2000]]
    assert de[0].tolist() == [9, 4, 6, 90, 40]
    failed = paired.Prompt("z", 7, 1.0, 1.0, failed=True)
    for lacking in ({"d": None}, {"d": failed}):
        for place in range(4):
            runs = [run(size, **(lacking if place == i else {})) for i, size in enumerate((1,) * 4)]
            found = paired.pair((runs[0], runs[1]), (runs[2], runs[3]))
            assert found is not None and found[-1, 0, 0] == 5
    assert np.shape(paired.pair(before, after, left_out=["a", "b"])) == (2, 2, 5)
    assert paired.pair(before, after, left_out=["a", "b", "c"]) is None


def test_one_turn_that_failed_is_a_prompt_that_did() -> None:
    answers = [answer(turn=0), answer(turn=1, error="lost"), answer(turn=2)]
    [prompts] = paired.gather(answers).values()
    [prompt] = prompts.values()
    assert prompt.failed and (prompt.tokens, prompt.passes) == (12, 6)
    assert prompt.seconds == sum(each.decoding for each in answers)
