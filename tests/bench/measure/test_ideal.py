"""The ideals of a speedup, and the batch size where speculation stops paying."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import LLM, SamplingParams
from foretoken.bench.measure import ideal
from foretoken.bench.measure.costs import Costs
from foretoken.bench.record import Answer
from foretoken.engine.stats import AcceptanceStats
from foretoken.testing import Pair

COSTS: Costs = {
    "context": 128,
    "repeats": 5,
    "bandwidth_gb_s": 10.0,
    "target": {
        "weight_bytes": 1000,
        "kv_bytes": 100,
        "passes": [
            {"batch_size": 1, "ms": {"1": 10.0, "5": 14.0, "64": 73.0}},
            {"batch_size": 4, "ms": {"4": 20.0, "20": 60.0}},
        ],
    },
    "drafts": {
        "autoregressive": None,
        "pld": None,
        "sps": {
            "weight_bytes": 90,
            "kv_bytes": 10,
            "passes": [{"batch_size": 1, "ms": {"1": 1.0, "2": 1.5}}],
        },
    },
}


def answer(stats: AcceptanceStats) -> Answer:
    """A line of samples.jsonl with these counts."""
    return Answer(
        target="t",
        method="m",
        temperature=0.0,
        id="1",
        task="a",
        turn=0,
        prompt="",
        text="",
        finish_reason="length",
        token_ids=[1] * stats.tokens,
        pieces=[],
        accepted=[],
        passes=stats.passes,
        drafted=stats.drafted,
        drafted_at=stats.drafted_at,
        accepted_at=stats.accepted_at,
        seconds=dict.fromkeys(("draft", "verify", "other"), 0.0),
        peak_memory_mib=None,
    )


def run(method: str, tokens: float, steps: dict[str, int], **changes: Any) -> Any:
    """A run of results.json, as far as it is read here. Drafts are chains of at most 4."""
    return {
        "method": method,
        "temperature": 0.0,
        "batch_size": 1,
        "speedup": 1.5,
        "mean_acceptance_length": tokens,
        "target_passes": sum(steps.values()),
        "acceptance_rate_per_position": [0.5] * 4,
        "nodes_per_step": steps,
        "ms_per_step": {"draft": 0.0, "verify": 8.0, "other": 0.0},
        "by_task": {},
        "ideal": None,
    } | changes


PLAIN = run("autoregressive", 1.0, {"0": 40})


@given(st.lists(st.integers(0, 6), max_size=30))
def test_nodes_per_step_of_chains(drafts: list[int]) -> None:
    """The counts by position tell how many steps drafted how many tokens."""
    stats = AcceptanceStats()
    for drafted in drafts:
        stats.record(1, drafted, 0, drafted)
    expected = {str(n): drafts.count(n) for n in sorted(set(drafts))}
    assert ideal.nodes_per_step([answer(stats)]) == expected
    doubled = {n: 2 * count for n, count in expected.items()}
    assert ideal.nodes_per_step([answer(stats)] * 2) == doubled


def test_nodes_per_step_of_trees() -> None:
    """Every node is counted, at each answer's mean."""
    stats = AcceptanceStats()
    for nodes, depth in ((10, 2), (11, 3), (12, 2), (0, 0)):
        stats.record(1, nodes, 0, depth)
    assert ideal.nodes_per_step([answer(stats)]) == {"0": 1, "11": 3}
    stats.record(1, 13, 0, 3)
    assert ideal.nodes_per_step([answer(stats)]) == {"0": 1, "11": 2, "12": 2}


def test_nodes_per_step_of_the_engine(pair: Pair) -> None:
    """What the engine counts adds up to its passes and its drafted tokens."""
    llm = LLM(pair.target, speculative_config={"method": "pld"})
    prompt = [random.Random(0).randrange(8) for _ in range(40)]
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=60))
    steps = ideal.nodes_per_step([answer(llm.stats)])
    assert sum(steps.values()) == llm.stats.passes
    assert sum(int(nodes) * count for nodes, count in steps.items()) == llm.stats.drafted > 0
    assert len(steps) > 1


def test_plain_decoding_is_1() -> None:
    """By either ideal."""
    assert ideal.ideal(PLAIN, PLAIN, COSTS, "autoregressive", 1) == {
        "from_pass_costs": 1.0,
        "from_bytes": 1.0,
    }


def test_ideals_of_a_copying_method() -> None:
    """Steps without a draft cost a plain pass, and bytes nothing but what plain decoding reads."""
    part = run("pld", 2.0, {"0": 30, "4": 10})
    found = ideal.ideal(part, PLAIN, COSTS, "pld", 1)
    assert found["from_pass_costs"] == pytest.approx(2.0 * 10 / (0.75 * 10 + 0.25 * 14))
    assert found["from_bytes"] == 2.0


def test_ideals_of_a_draft_model() -> None:
    """Four passes of its own a step, by time and by bytes."""
    found = ideal.ideal(run("sps", 3.0, {"4": 10}), PLAIN, COSTS, "sps", 1)
    assert found["from_pass_costs"] == pytest.approx(3.0 * 10 / (14 + 4 * 1))
    assert found["from_bytes"] == pytest.approx(3.0 * 1100 / (1100 + 4 * 100))


def test_a_tree_drafts_by_levels() -> None:
    """As many passes of the draft model as the tree is deep."""
    part = run("sps", 3.0, {"63": 10})
    found = ideal.ideal(part, PLAIN, COSTS, "sps", 1)
    assert found["from_pass_costs"] == pytest.approx(3.0 * 10 / (73 + 4 * 1))
    assert found["from_bytes"] == pytest.approx(3.0 * 1100 / (1100 + 4 * 100))


def test_the_engines_own_work_counts_on_both_sides() -> None:
    """As plain decoding's share of its pass, whatever the method's own is."""
    plain = run(
        "autoregressive", 1.0, {"0": 40}, ms_per_step={"draft": 0.4, "verify": 8.0, "other": 1.6}
    )
    part = run("pld", 2.0, {"4": 10}, ms_per_step={"draft": 5.0, "verify": 8.0, "other": 9.0})
    found = ideal.ideal(part, plain, COSTS, "pld", 1)
    assert found["from_pass_costs"] == pytest.approx(2.0 * 12.5 / (14 + 2.5))
    assert found["from_bytes"] == 2.0


def test_batches_are_not_padded() -> None:
    """Four sequences that draft 2 tokens on average are a pass of 12, at that batch size's cost."""
    part = run("pld", 2.0, {"0": 10, "4": 10}, batch_size=4)
    found = ideal.ideal(part, PLAIN, COSTS, "pld", 4)
    assert found["from_pass_costs"] == pytest.approx(2.0 * 20 / 40)


def test_two_sequences_are_a_batch() -> None:
    """From two on rows differ: 2 tokens on average are a pass of 6, between those of 2 and 10."""
    costs: Any = {**COSTS, "target": {**COSTS["target"], "passes": [
        {"batch_size": 2, "ms": {"2": 10.0, "6": 20.0, "10": 60.0}}]}}  # fmt: skip
    part = run("pld", 2.0, {"0": 10, "4": 10}, batch_size=2)
    found = ideal.ideal(part, PLAIN, costs, "pld", 2)
    assert found["from_pass_costs"] == pytest.approx(2.0 * 10 / 20)


def test_a_run_without_steps_has_no_ideal() -> None:
    """All prompts failed, say."""
    part = run("pld", 1.0, {}, mean_acceptance_length=None)
    found = ideal.ideal(part, PLAIN, COSTS, "pld", 1)
    assert found == {"from_pass_costs": None, "from_bytes": None}


def results(*runs: Any, costs: Costs | None = COSTS) -> Any:
    return {"runs": list(runs), "costs": costs}


def test_add_ideals() -> None:
    """Every run and task compared with plain decoding at the same temperature and batch size."""
    tasks = {"qa": run("", 1.0, {"0": 9}), "rag": run("", 1.0, {"0": 9})}
    plain = run("autoregressive", 1.0, {"0": 9}, by_task=tasks)
    by_task = {"qa": run("", 2.0, {"4": 9}), "rag": run("", 3.0, {"4": 9})}
    pld, warm = run("pld", 2.5, {"4": 18}, by_task=by_task), run("pld", 2, {"4": 9}, temperature=1)
    odd = run("layers", 2.5, {"4": 18})  # whose drafting costs are not known
    found = results(plain, pld, warm, odd)
    ideal.add_ideals(found)
    assert pld["ideal"]["from_bytes"] == 2.5
    assert [by_task[task]["ideal"]["from_bytes"] for task in ("qa", "rag")] == [2.0, 3.0]
    assert plain["ideal"]["from_bytes"] == plain["by_task"]["qa"]["ideal"]["from_bytes"] == 1.0
    assert warm["ideal"] is odd["ideal"] is None  # no plain decoding to compare with, no costs


def test_without_costs() -> None:
    """Nothing is made up."""
    found = results(PLAIN, run("pld", 2.0, {"4": 9}), costs=None)
    found["crossover"] = [{"method": "pld"}]  # of the first part, where several are merged
    ideal.add_ideals(found)
    assert found["runs"][1]["ideal"] is None
    assert "crossover" not in found


def test_crossing() -> None:
    """Between the last size that pays and the first that doesn't, on a straight line."""
    assert ideal.crossing({1: 2.0, 4: 1.5, 8: 0.5}) == 6.0
    assert ideal.crossing({1: 2.0, 4: 1.0, 8: 0.5}) == 4.0
    assert ideal.crossing({4: 1.2, 1: 2.0}) is None
    assert ideal.crossing({2: 0.9, 4: 1.2}) == 2.0


def test_measured_crossover() -> None:
    """Measured batch sizes alone decide where there are several."""
    runs = [
        run("pld", 2.0, {"4": 9}, batch_size=size, speedup=speed)
        for size, speed in ((1, 1.8), (4, 1.2), (8, 0.8))
    ]
    assert ideal.crossovers([PLAIN, *runs], None) == [
        {"method": "pld", "temperature": 0.0, "batch_size": 6.0, "up_to": 8, "predicted": False}
    ]


def test_predicted_crossover() -> None:
    """From batch 1 on the measured speedup shrinks as the simulated one does."""
    part = run("pld", 2.0, {"4": 9}, speedup=1.2)  # 2 · 10 / 14 = 1.43 by pass costs
    costs: Costs = {
        **COSTS,
        "target": {
            **COSTS["target"],
            "passes": [{"batch_size": 1, "ms": {"1": 10.0, "5": 14.0, "6": 15.0}}],
        },
    }
    [found] = ideal.crossovers([PLAIN, part], costs)
    assert found["predicted"] and found["up_to"] == 64
    # b tokens cost 9 + b: 2 (9 + b) / (9 + 5 b) · (1.2 · 14 / 20) = 1 at b = 1.843
    assert found["batch_size"] == pytest.approx(1.843, abs=0.05)
    flat: Costs = {
        **COSTS,
        "target": {**COSTS["target"], "passes": [{"batch_size": 1, "ms": {"1": 10.0}}]},
    }
    assert ideal.crossovers([PLAIN, part], flat)[0]["batch_size"] is None
    part["speedup"] = 0.9
    assert ideal.crossovers([PLAIN, part], flat)[0] == {
        "method": "pld",
        "temperature": 0.0,
        "batch_size": 1.0,
        "up_to": 1,
        "predicted": False,
    }


def test_each_sequence_has_keys_and_values_of_its_own() -> None:
    """Weights are read once for a batch, the cache of either model once for each sequence."""
    part = run("sps", 3.0, {"4": 10}, batch_size=4)
    found = ideal.ideal(part, PLAIN, COSTS, "sps", 4)
    assert found["from_bytes"] == pytest.approx(3.0 * 1400 / (1400 + 4 * 130))


def test_plain_decoding_of_the_same_batch_size_counts() -> None:
    """Whose engine may do more work around a pass; and a task of the method alone has no ideal."""
    busy = {"draft": 0.0, "verify": 8.0, "other": 8.0}
    plains = [PLAIN, run("autoregressive", 1.0, {"0": 9}, batch_size=4, ms_per_step=busy)]
    by_task = {"qa": run("", 2.0, {"4": 9})}
    part = run("pld", 2.0, {"4": 10}, batch_size=4, by_task=by_task)
    ideal.add_ideals(results(*plains, part))
    assert part["ideal"]["from_pass_costs"] == pytest.approx(2.0 * 40 / (60 + 20))
    assert by_task["qa"]["ideal"] is None


def test_each_temperature_has_its_own_crossover() -> None:
    """And what drafting costs must be known, where other batch sizes are predicted."""
    runs = [
        run("pld", 2.0, {"4": 9}, batch_size=size, temperature=temperature, speedup=speed)
        for temperature, speeds in ((0.0, (1.5, 0.5)), (1.0, (0.9, 0.8)))
        for size, speed in zip((1, 4), speeds, strict=True)
    ]
    found = ideal.crossovers([PLAIN, *runs], None)
    assert [(one["temperature"], one["batch_size"]) for one in found] == [(0.0, 2.5), (1.0, 1.0)]
    assert ideal.crossovers([PLAIN, run("layers", 2.0, {"4": 9})], COSTS) == []
