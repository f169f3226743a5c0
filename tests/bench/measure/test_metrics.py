"""The numbers of a measurement, from its answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from foretoken.bench.measure import metrics
from foretoken.bench.record import Answer
from measured_answers import answer, plain


def taking(seconds: float) -> dict[str, float]:
    return {**answer().seconds, "draft": 0.0, "other": 0.0, "verify": seconds}


def test_distinct_4() -> None:
    """Different 4-grams ÷ all 4-grams; 1 for texts that have none."""
    assert metrics.distinct_4([1, 2, 3]) == 1.0
    assert metrics.distinct_4(range(20)) == 1.0
    assert metrics.distinct_4([1] * 23) == 1 / 20
    assert metrics.distinct_4([1, 2, 1, 2, 1, 2]) == 2 / 3  # 1212 and 2121, of three


def test_looping_looks_at_every_turn() -> None:
    """A prompt loops if its second turn does."""
    loop = plain(id="b", turn=1, token_ids=[1] * 9)
    assert metrics.looping([plain(id="a"), plain(id="b"), loop]) == ["b"]


def test_bootstrap_of_equal_prompts_is_a_point() -> None:
    """Every resample has the same speedup."""
    assert metrics.bootstrap([10] * 5, [1.0] * 5, [10] * 5, [2.0] * 5) == [2.0, 2.0]


def test_bootstrap_of_one_prompt_is_nothing() -> None:
    """A single group has no interval."""
    assert metrics.bootstrap([10], [1.0], [10], [2.0]) is None


def test_bootstrap_known() -> None:
    """Half of the prompts are twice as fast, half are not faster: 100 of them, binomial."""
    fast, slow = [1.0] * 50, [2.0] * 50
    found = metrics.bootstrap([1] * 100, fast + slow, [1] * 100, [2.0] * 100)
    assert found is not None
    # k of 100 fast: speedup 200 / (200 - k); k stays within 40 … 60 in 95 of 100 resamples.
    assert found[0] == pytest.approx(200 / 160, abs=0.01)
    assert found[1] == pytest.approx(200 / 140, abs=0.015)


def test_bootstrap_is_paired() -> None:
    """Prompts differ a hundredfold in cost, and every one is exactly 3 times as fast."""
    costs = [0.01 * 1.6**i for i in range(10)]
    found = metrics.bootstrap([5] * 10, costs, [5] * 10, [3 * c for c in costs])
    assert found == pytest.approx([3.0, 3.0])


def test_measure() -> None:
    """Two prompts of four tokens: 0.1 s each against 0.2 s each."""
    mine = [answer(id=i) for i in "ab"]
    theirs = [plain(id=i, seconds=taking(0.2)) for i in "ab"]
    found = metrics.measure(mine, theirs)
    assert found["tokens_per_second"] == pytest.approx(40)
    assert found["speedup"] == pytest.approx(2)
    assert found["speedup_ci95"] == pytest.approx([2, 2])
    assert found["mean_acceptance_length"] == 2
    assert found["draft_acceptance_rate"] == pytest.approx(4 / 6)
    assert found["acceptance_rate_per_position"] == [0.5, 1.0]
    assert found["ms_per_step"] == pytest.approx({"draft": 10, "verify": 35, "other": 5})
    assert found["latency_ms"]["ttft_p50"] == pytest.approx(30)
    assert found["latency_ms"]["per_token_p99"] == pytest.approx(30)
    assert (found["target_passes"], found["tokens"], found["peak_memory_mib"]) == (4, 8, 10)
    same = {"prompts": 2, "identical": 2, "near_tie": 0, "different": 0}
    assert found["identical_to_autoregressive"] == same
    assert "kv_cache_mib" not in found  # of a server nobody knows
    held = [answer(id=i, kv_cache_mib=mib) for i, mib in (("a", 3.0), ("b", 2.0))]
    assert metrics.measure(held, theirs)["kv_cache_mib"] == 3


def test_a_prompt_is_as_same_as_its_worst_turn() -> None:
    """A near tie in one turn makes the prompt one; an answer without a claim leaves nothing to
    count."""
    turns = [answer(), answer(turn=1, sameness="near_tie"), answer(id="b", sameness="different")]
    found = metrics.measure(turns, [])["identical_to_autoregressive"]
    assert found == {"prompts": 2, "identical": 0, "near_tie": 1, "different": 1}
    assert metrics.measure([answer(sameness=None)], [])["identical_to_autoregressive"] is None


def test_nothing_kept_is_null_and_not_an_error() -> None:
    """All prompts loop: no speedup, and JSON can hold the run."""
    found = metrics.runs([answer(), plain()], ["a-1"], repeats=1)
    assert [run["speedup"] for run in found] == [None, None]
    assert [run["prompts"] for run in found] == [0, 0]
    json.dumps(found, allow_nan=False)


def test_a_resample_without_tokens_has_no_interval() -> None:
    """Rather than an infinite one, which JSON can't hold."""
    assert metrics.bootstrap([4, 4], [1.0, 1.0], [0, 4], [1.0, 1.0]) is None


def group_of(size: int, name: str, seconds: float, **given: Any) -> list[Answer]:
    """Answers served together in `seconds`, shared equally."""
    made = plain if given.pop("plain", False) else answer
    return [
        made(id=f"{name}-{i}", group=name, batch_size=size, seconds=taking(seconds / size), **given)
        for i in range(size)
    ]


def test_the_bootstrap_draws_groups() -> None:
    """Two groups of four: one interval end is the slower group alone, the other the faster one."""
    mine = group_of(4, "a", 1.0) + group_of(4, "b", 2.0)
    theirs = group_of(4, "a", 2.0, plain=True) + group_of(4, "b", 2.0, plain=True)
    found = metrics.measure(mine, theirs)
    assert found["speedup"] == pytest.approx(4 / 3)
    assert found["speedup_ci95"] == pytest.approx([1.0, 2.0])
    assert found["tokens_per_second"] == pytest.approx(32 / 3)


def test_a_step_of_a_batch_is_one_pass_over_it() -> None:
    """Four members, two passes each, in two passes over the batch that took 1 s together."""
    mine = group_of(4, "a", 1.0, engine_steps=0.5)
    found = metrics.measure(mine, [])
    assert found["ms_per_step"]["verify"] == pytest.approx(500)
    assert found["target_passes"] == 8


def test_batch_sizes_are_held_against_their_own_baseline() -> None:
    """Each batch size is compared with plain decoding at the same one."""
    answers = [answer(seconds=taking(0.1)), plain(seconds=taking(0.2))]
    answers += group_of(2, "a", 0.4) + group_of(2, "a", 0.4, plain=True)
    found = metrics.runs(answers, [], repeats=1)
    keys = [(r["method"], r["batch_size"], r["speedup"]) for r in found]
    assert keys == [
        ("pld", 1, pytest.approx(2)),
        ("autoregressive", 1, 1.0),
        ("pld", 2, 1.0),
        ("autoregressive", 2, 1.0),
    ]


def broken(of: Answer, **given: Any) -> Answer:
    nothing = dict.fromkeys(of.seconds, 0.0)
    return replace(
        of,
        error="NaN",
        token_ids=[],
        pieces=[],
        accepted=[],
        text="",
        passes=0,
        drafted=0,
        drafted_at=[],
        accepted_at=[],
        seconds=nothing,
        decodings=[],
        sameness=None,
        **given,
    )


def test_a_failed_prompt_counts_nowhere() -> None:
    """Neither its other turn nor plain decoding's answers to it are averaged."""
    good = [answer(id="a"), plain(id="a", seconds=taking(0.2))]
    bad = [broken(answer(id="b")), answer(id="b", turn=1, seconds=taking(9.0))]
    theirs = [plain(id="b", seconds=taking(9.0)), plain(id="b", turn=1, seconds=taking(9.0))]
    [pld, _] = metrics.runs([*good, *bad, *theirs], [], repeats=1)
    assert pld["failed"] == 1 and pld["prompts"] == 1
    assert pld["speedup"] == pytest.approx(2) and pld["tokens"] == 4
    assert pld["latency_ms"]["ttft_p99"] == pytest.approx(30)


def test_a_batch_of_which_one_failed_is_not_compared() -> None:
    """Its others are faster for that, whatever the method; the whole batches are compared."""
    mine = group_of(4, "a", 1.0) + group_of(4, "b", 1.0)
    theirs = group_of(4, "a", 1.0, plain=True) + group_of(4, "b", 1.0, plain=True)
    others = [replace(a, seconds=taking(1 / 3)) for a in theirs[1:4]]
    [pld, _] = metrics.runs([*mine, broken(theirs[0]), *others, *theirs[4:]], [], repeats=1)
    assert pld["speedup"] == pytest.approx(1)


def test_all_failed_is_null_and_not_an_error() -> None:
    """A run of failures has counts of them and no other number."""
    [pld, _] = metrics.runs([broken(answer()), plain()], [], repeats=1)
    assert (pld["failed"], pld["prompts"], pld["speedup"], pld["tokens"]) == (1, 0, None, 0)
    json.dumps(pld, allow_nan=False)


def test_spec_bench_counts_prefill_and_weighs_questions_alike() -> None:
    """8 tokens in 1 s and 4 in 4 s: a mean of 8 and 1 tokens/s, where tokens ÷ time is 2.4."""
    quick = {**taking(0.5), "total": 1.0}
    slow = {**taking(0.5), "total": 4.0}
    mine = [answer(id="a", token_ids=[1] * 8, seconds=quick), answer(id="b", seconds=slow)]
    theirs = [plain(id=i, seconds={**taking(0.5), "total": 4.0}) for i in "ab"]
    found = metrics.spec_bench(mine, theirs)
    assert found["tokens_per_second"] == pytest.approx(4.5)
    assert found["speedup"] == pytest.approx(4.5)
    assert found["mean_accepted_tokens"] == 3


def test_spec_bench_compares_the_same_prompts() -> None:
    """A method that fails on a slow one is no faster for that, nor is plain decoding."""
    times = {"a": {**taking(0.5), "total": 1.0}, "b": {**taking(0.5), "total": 8.0}}
    mine = [answer(id=i, seconds=times[i]) for i in "ab"]
    theirs = [plain(id=i, seconds=times[i]) for i in "ab"]
    for some, others in ((mine[:1], theirs), (mine, theirs[:1])):
        assert metrics.spec_bench(some, others)["speedup"] == pytest.approx(1.0)
    assert metrics.spec_bench(mine[:1], theirs[1:])["speedup"] is None


def test_spec_bench_leaves_no_loop_out() -> None:
    """Its columns count a prompt that the others leave out."""
    answers = [answer(id=i) for i in "ab"] + [plain(id=i) for i in "ab"]
    slow = [replace(a, seconds={**a.seconds, "total": 0.4}) if a.id == "b" else a for a in answers]
    [pld, _] = metrics.runs(slow, ["b"], repeats=1)
    assert pld["prompts"] == 1
    assert pld["spec_bench"]["tokens_per_second"] == pytest.approx((4 / 0.12 + 4 / 0.4) / 2)
    assert pld["by_task"]["a"]["spec_bench"] == pld["spec_bench"]


def test_what_approximate_methods_cost() -> None:
    """Only they have a stray rate; plain decoding has the likelihood to hold theirs against."""
    near = answer(strayed=1, log_likelihood=-8.0)
    base = plain(log_likelihood=-4.0)
    [mine, theirs] = metrics.runs([near, base], [], repeats=1)
    assert (mine["log_likelihood_per_token"], mine["stray_rate"]) == (-2.0, 0.25)
    assert (theirs["log_likelihood_per_token"], theirs["stray_rate"]) == (-1.0, None)
    [exact, _] = metrics.runs([answer(), plain()], [], repeats=1)
    assert (exact["log_likelihood_per_token"], exact["stray_rate"]) == (None, None)


def test_scores_are_means_over_who_has_them() -> None:
    """An answer without a score does not lower the mean."""
    mine = [answer(id="a", scores={"accuracy": 1.0}), answer(id="b", scores={"accuracy": 0.0})]
    found = metrics.measure([*mine, answer(id="c")], [])
    assert found["scores"] == {"accuracy": 0.5}


def test_bleu_is_of_all_translations_together() -> None:
    """Corpus BLEU adds counts up, so it is not the mean of the sentences' own."""
    said = {"a": "the cat sat on the mat today", "b": "a dog"}
    right = {"a": "the cat sat on the mat today", "b": "one large hound barked at us"}
    mine = [answer(id=i, text=t, scores={"bleu": 50.0}) for i, t in said.items()]
    assert metrics.measure(mine, [])["scores"] == {"bleu": 50.0}
    references = {(i, 0): (t,) for i, t in right.items()}
    found = metrics.measure(mine, [], references)["scores"]["bleu"]
    assert 40 < found < 100 and found != 50


def test_energy_is_null_unless_all_was_counted() -> None:
    """One answer without a count leaves no mean."""
    mine = [answer(id="a", energy_j=2.0), answer(id="b", energy_j=4.0)]
    assert metrics.measure(mine, [])["energy_j_per_token"] == 6 / 8
    assert metrics.measure([*mine, answer(id="c")], [])["energy_j_per_token"] is None


def test_a_loop_of_words() -> None:
    """Of a server, which sends no ids."""
    said = {"a": "one two three four five six", "b": "go on " * 9}
    answers = [plain(id=i, token_ids=[], counted=9, text=text) for i, text in said.items()]
    assert metrics.looping(answers) == ["b"]


def test_latencies_are_of_those_who_waited() -> None:
    """A first token, of answers that have one; further ones, of those that have several."""
    waits = (0.01, 0.02, 0.09)
    mine = [
        answer(id=str(wait), token_ids=[5], seconds={**taking(0.1), "ttft": wait, "total": wait})
        for wait in waits
    ]
    found = metrics.measure([*mine, answer(id="none", token_ids=[])], [])["latency_ms"]
    assert found["ttft_p50"] == pytest.approx(20)
    assert found["ttft_p99"] == pytest.approx(20 + 0.98 * 70)
    assert found["per_token_p50"] is found["per_token_p99"] is None


def test_a_turn_without_a_claim_leaves_its_conversation_without_one() -> None:
    """Where a method went on from its own answer, and not from plain decoding's."""
    turns = [answer(), answer(turn=1, sameness=None)]
    assert metrics.measure(turns, [])["identical_to_autoregressive"] is None


def test_what_counts_for_how_many() -> None:
    """A likelihood for the tokens that have one; a failure for its prompt, whatever its turns; no
    speedup over a plain text without tokens."""
    mine = [answer(id="a", log_likelihood=-8.0), answer(id="b")]
    assert metrics.measure(mine, [])["log_likelihood_per_token"] == -2.0
    turns = [broken(answer(id="b")), broken(answer(id="b", turn=1))]
    [pld, _] = metrics.runs([*turns, answer(id="a"), plain(id="a")], [], repeats=1)
    assert pld["failed"] == 1
    assert metrics.measure([answer()], [plain(token_ids=[])])["speedup"] is None


def test_positions_that_some_answers_never_reach() -> None:
    found = [answer(drafted_at=[2, 1], accepted_at=[1, 1]), answer(drafted_at=[1], accepted_at=[1])]
    assert metrics._per_position(found) == [2 / 3, 1.0]
