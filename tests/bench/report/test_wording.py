"""A run's numbers as text."""

from __future__ import annotations

from typing import Any

import pytest

import synthetic
from foretoken.bench.report import wording
from foretoken.bench.report.layout import NONE


def test_headline_names_the_fastest_with_its_interval() -> None:
    """And on how many prompts its tokens were the same."""
    text = wording.headline(synthetic.results(sizes=(1,)))
    assert text.startswith("At temperature 0, a small draft model (sps) is the fastest: 1.52 times")
    assert "interval 1.38–1.68" in text and "27 of 28 prompts" in text
    assert "Approximate methods are left aside" in text


def test_an_interval_without_counters() -> None:
    """A server that doesn't say what it accepted has a speed all the same."""
    run = next(r for r in synthetic.results(sizes=(1,))["runs"] if r["method"] == "sps")
    run["mean_acceptance_length"] = None
    assert run["speedup_ci95"] is not None and wording.interval(run) != NONE
    run["speedup_ci95"] = None
    assert wording.interval(run) == NONE


def test_no_winner_without_evidence() -> None:
    """None on an interval that includes 1, nor on fewer than eight prompts."""
    results = synthetic.results(sizes=(1,))
    best = next(r for r in results["runs"] if (r["method"], r["temperature"]) == ("sps", 0))
    best["prompts"] = 7
    assert "7 prompts are too few for a winner" in wording.headline(results)
    best["prompts"], best["speedup_ci95"] = 8, [0.99, 1.68]
    text = wording.headline(results)
    assert "(sps) wrote 1.52 times" in text and "0.99–1.68), which isn't beyond doubt; " in text
    assert "; token_recycling, prompt lookup (pld), " in text
    assert "are faster beyond doubt. Approximate" in text
    for run in results["runs"]:
        if run["method"] != "pld":
            run["speedup_ci95"] = [0.99, 1.68]
    assert "; prompt lookup (pld) is faster beyond doubt." in wording.headline(results)
    for run in results["runs"]:
        run["speedup_ci95"] = [0.99, 1.68]
    text = wording.headline(results)
    assert "nothing is faster than plain decoding beyond doubt" in text and "0.99–1.68" in text
    assert "fastest" not in text


def test_the_machine() -> None:
    """The device that the target ran on, where the record names it; of a server what asked it."""
    results = synthetic.results()
    known, cpu = results["environment"], "Made-up CPU @ 2.10GHz"
    assert wording.machine(results) == cpu
    known["gpu"] = "Made-up GPU"
    assert wording.machine(results) == "Made-up GPU"
    for device, name in (("cpu", cpu), ("cuda", "Made-up GPU")):
        results["target"]["device"] = device
        assert wording.machine(results) == name
    server = synthetic.results(server="http://127.0.0.1:8000")
    server["environment"]["gpu"] = "Made-up GPU"
    assert wording.machine(server) == f"asked from {cpu}"
    known.clear()
    assert wording.machine(results) == "an unknown machine"


def test_what_the_averages_are_of() -> None:
    """How many prompts, and whether answers that loop are among them."""
    results = synthetic.results()
    assert "28 of 30 prompts: 2 are left out because plain decoding's answer loops" in (
        wording.coverage(results)
    )
    assert "--keep-loops" not in wording.coverage(results)
    results["suite"] |= {"left_out": [str(i) for i in range(30)]}
    assert "None is left; --keep-loops counts them." in wording.coverage(results)
    results["suite"] |= {"left_out": []}
    assert "30 prompts, none of which made the target loop." in wording.coverage(results)
    results["suite"] |= {"distinct_4_threshold": 0.0}
    assert "30 prompts, also those to which plain decoding's answer loops." in (
        wording.coverage(results)
    )


def test_what_is_unfinished_says_so() -> None:
    """Before the averages, with the prompts planned, where the folder tells how many."""
    results = synthetic.results()
    assert wording.unfinished(results) == ""
    results["suite"]["planned"] = 80
    assert wording.coverage(results).startswith("Unfinished: 30 of 80 prompts. Averages over 28 of")
    nothing = synthetic.results()
    nothing["suite"] |= {"planned": 80, "prompts": 0}
    assert wording.coverage(nothing) == "Unfinished: 0 of 80 prompts."
    results["suite"]["planned"] = None
    assert wording.unfinished(results) == "Unfinished: 30 prompts so far."


def test_the_legend_has_what_labels_do_not_say() -> None:
    """Only measured methods, and no name twice."""
    text = wording.legend([synthetic.results()])
    assert "sps: a small draft model; pld: prompt lookup" in text
    assert "token_recycling" not in text and "rest" not in text
    assert wording.spelled("pld") == "prompt lookup (pld)"
    assert wording.spelled("autoregressive") == "plain decoding"
    assert wording.spelled("token_recycling") == "token_recycling"


def test_words() -> None:
    """How equal texts, near ties, differences and other claims are worded."""
    base: Any = {"prompts": 4, "identical": 4, "near_tie": 0, "different": 0}
    assert wording.sameness("pld", base) == "yes"
    assert wording.sameness("pld", {**base, "near_tie": 1}) == "yes, but 1 near tie"
    assert wording.sameness("pld", {**base, "near_tie": 2}) == "yes, but 2 near ties"
    assert wording.sameness("pld", {**base, "different": 1}) == "1 of 4 differ"
    assert wording.sameness("sps", None) == "same distribution"
    assert wording.sameness("outsider", None) == "not claimed"
    assert wording.sameness("autoregressive", base) == NONE


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("half", "float32"),
        ("blocks", "weights as its file has them"),
        ("compiled+q4", "weights of 4 bits"),
        ("int8", "int8 weights"),
    ],
)
def test_the_weights_that_are_read(backend: str, said: str) -> None:
    """Not the dtype of the states, where the weights are narrower than any."""
    results = synthetic.results()
    results["target"].update(backend=backend, dtype="float32")
    assert said in wording.title(results)
    assert wording.short_title(results).endswith(f", {said}")


def test_what_the_averages_lack() -> None:
    """Prompts that were too long, answers that failed; and the parts of steps that nobody timed."""
    results: Any = synthetic.results(temperatures=(0.0,), sizes=(1,))
    text = wording.coverage(results)
    assert text.endswith("1 prompt skipped: too long for the target's context.")
    results["suite"]["skipped"], results["runs"][1]["failed"] = [], 2
    assert "skipped" not in wording.coverage(results)
    assert wording.coverage(results).endswith(" 2 answers failed.")
    run = results["runs"][1]
    run["ms_per_step"] = {"draft": 0.0, "verify": 0.0, "other": 9.0}
    assert wording.step_ms(run, "other") is None
