"""Two runs compared: real changes are found, noise is not, and what differs is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compared import Make, measured_folder
from foretoken.bench.measure import metrics
from foretoken.bench.record import Answer
from foretoken.bench.report.compare import Change, compare
from foretoken.cli.commands import app
from foretoken.files import write_json


def change(a: Path, b: Path, what: str, method: str = "pld") -> Change:
    [found] = [c for c in compare(a, b).changes if (c.what, c.method) == (what, method)]
    return found


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_same_run_twice_is_no_change(make: Make) -> None:
    """Nothing is beyond noise, and the command succeeds."""
    a, b = make("a"), make("b")
    assert not compare(a, b).beyond
    found = run(a, b, "--fail-on-regression")
    assert found.exit_code == 0 and "No change beyond noise" in found.stdout


def test_a_small_change_is_found_by_pairing(make: Make) -> None:
    """8 % on prompts that differ twofold: the intervals overlap widely, the pairs do not."""
    a, b = make("a"), make("b", seed=1, pld=1.08)
    found = change(a, b, "speedup")
    assert found.beyond and found.regression and found.percent == "−8 %"
    assert found.sentence == "speedup of pld 1.52→1.40 (−8 %, beyond noise)"
    alone = change(make("c", samples=False), make("d", seed=1, pld=1.08, samples=False), "speedup")
    assert alone.beyond is False and not alone.regression


def test_faster_is_no_regression(make: Make) -> None:
    """A change beyond noise for the better."""
    found = change(make("a"), make("b", pld=0.8), "speedup")
    assert found.beyond and not found.regression and found.percent == "+25 %"


def test_noise_is_no_change(make: Make) -> None:
    """5 % on a clock with 40 % of noise stay within it."""
    found = change(make("a", noise=0.4), make("b", seed=1, noise=0.4, pld=1.05), "speedup")
    assert found.beyond is False


def test_slower_plain_decoding_counts_on_the_same_machine_only(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the speedup as it was, and on another CPU it is no regression."""
    a, b = make("a"), make("b", autoregressive=1.2, pld=1.2)
    found = change(a, b, "tokens/s", "autoregressive")
    assert found.beyond and found.regression
    assert not change(a, b, "speedup").beyond  # both methods slowed down alike
    other = json.loads((b / "results.json").read_text())
    other["environment"]["cpu"] = "Another CPU"
    write_json(b / "results.json", other)
    assert not change(a, b, "tokens/s", "autoregressive").regression
    other["environment"]["date"] = "2026-02-28T12:00:00+00:00"  # which always differs
    write_json(b / "results.json", other)
    assert compare(a, b).differences == ["environment, cpu: Made-up CPU @ 2.10GHz → Another CPU"]


def test_slower_plain_decoding_counts_on_the_same_device_only(make: Make) -> None:
    """One machine's GPU and CPU are two; a GPU that wasn't used makes no other machine."""
    a, b = make("a"), make("b", autoregressive=1.2, pld=1.2)
    for device, worse in (("cpu", True), ("cuda", False)):
        for folder, own, gpu in ((a, "cpu", None), (b, device, "Made-up GPU")):
            results = json.loads((folder / "results.json").read_text())
            results["target"]["device"], results["environment"]["gpu"] = own, gpu
            write_json(folder / "results.json", results)
        assert change(a, b, "tokens/s", "autoregressive").regression == worse


def test_a_method_that_fails_is_a_regression(make: Make) -> None:
    """On all prompts, so that no number is left to compare, or on some; and one that can't be run
    any more. One that was left out on purpose is none, nor is one that fails on fewer."""
    a, b = make("a", sps=1.0), make("b", sps=1.0)
    for failed, code in ((8, 1), (1, 1), (0, 0)):
        results = json.loads((b / "results.json").read_text())
        for entry in results["runs"]:
            entry["failed"] = failed if entry["method"] == "pld" else 0
        write_json(b / "results.json", results)
        assert run(a, b, "--fail-on-regression").exit_code == code, failed
    results["runs"][0]["failed"] = 0
    results["runs"] = [entry for entry in results["runs"] if entry["method"] != "sps"]
    write_json(b / "results.json", results)
    assert run(a, b, "--fail-on-regression").exit_code == 0
    write_json(b / "results.json", {**results, "not_run": {"sps": "There is no draft model."}})
    found = run(a, b, "--fail-on-regression")
    assert found.exit_code == 1 and "failed prompts of sps 0→not run" in found.output


def test_what_is_only_in_one_is_named(make: Make) -> None:
    """Methods of one run alone, and settings that differ."""
    a, b = make("a", sps=1.0), make("b", lookahead=1.0, max_tokens=99)
    found = compare(a, b)
    assert found.only_before == ["sps at temperature 0, batch size 1"]
    assert found.only_after == ["lookahead at temperature 0, batch size 1"]
    assert found.differences == ["suite, max tokens: 128 → 99"]
    text = " ".join(run(a, b).stdout.split())  # wherever the lines break
    assert "sps at temperature 0" in text and "128 → 99" in text
    text = text.replace(" ", "")
    assert f"onlyin{a}:spsat" in text and f"onlyin{b}:lookaheadat" in text


def test_other_text_than_before_is_a_regression(make: Make, tmp_path: Path) -> None:
    """More differing prompts fail the command where it is asked to; fewer do not."""
    a, b = make("a"), make("b")
    lines = (b / "samples.jsonl").read_text().splitlines()
    found = [Answer.parse(line) for line in lines]
    wrong = [replace(x, sameness="different") if x.id == "p3" else x for x in found]
    measured_folder(
        b, [x if x.method == "autoregressive" else y for x, y in zip(found, wrong, strict=True)]
    )
    text = change(a, b, "same text")
    assert (text.before, text.after) == ("yes", "1 of 24 differ") and text.regression
    assert run(a, b).exit_code == 0
    assert run(a, b, "--fail-on-regression").exit_code == 1
    back = change(b, a, "same text")
    assert back.beyond and not back.regression


def test_pairs_are_of_prompts_that_count_in_both(make: Make) -> None:
    """Loops and failures of either run are left out; the values are those of the rest."""
    a, b = make("a", left_out=["p23"]), make("b")
    everything = [Answer.parse(line) for line in (b / "samples.jsonl").read_text().splitlines()]
    broken = [
        replace(x, error="gone") if (x.id, x.method) == ("p22", "pld") else x for x in everything
    ]
    measured_folder(b, broken)
    rest = [x for x in everything if x.id not in ("p22", "p23")]
    mine = [x for x in rest if x.method == "pld"]
    plain = [x for x in rest if x.method == "autoregressive"]
    expected = metrics.measure(mine, plain)["speedup"]
    assert change(a, b, "speedup").after == pytest.approx(expected)


def test_two_single_targets_are_compared_in_any_case(make: Make) -> None:
    """At other precisions too, which is named; with a third measurement they are not a pair."""
    a, b = make("a"), make("b")
    other = json.loads((b / "results.json").read_text())
    other["target"]["dtype"] = "bfloat16"
    write_json(b / "results.json", other)
    found = compare(a, b)
    assert found.changes and "target, dtype: float32 → bfloat16" in found.differences
    write_json(a / "results-x.json", {**other, "target": {**other["target"], "dtype": "float64"}})
    found = compare(a, b)
    assert not found.changes
    assert found.only_before == ["synthetic, float32", "synthetic, float64"]


def test_comparison_as_json(make: Make) -> None:
    """The changes and their verdicts, as data."""
    found = json.loads(run(make("a"), make("b", pld=1.5), "--json").stdout)
    assert {c["what"] for c in found["changes"] if c["beyond"]} == {"speedup"}
    assert found["changes"][0]["method"] == "autoregressive"


def test_the_comparisons_of_two_runs_share_the_alarms(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two numbers of each of two methods have a quarter of the 5 % each, half beyond either end."""
    tails: list[float] = []

    def noted(units: Any, what: str, tail: float) -> None:
        tails.append(tail)

    monkeypatch.setattr("foretoken.bench.report.paired.ratio_interval", noted)
    found = compare(make("a"), make("b"))
    assert {*tails} == {0.05 / 4 / 2} and {one.beyond for one in found.changes} == {None}


def test_loops_of_the_later_run_are_left_out_too(make: Make) -> None:
    a, b = make("a"), make("b", left_out=["p23"])
    everything = [Answer.parse(line) for line in (a / "samples.jsonl").read_text().splitlines()]
    mine, plain = (
        [x for x in everything if x.id != "p23" and x.method == method]
        for method in ("pld", "autoregressive")
    )
    expected = metrics.measure(mine, plain)["speedup"]
    assert change(a, b, "speedup").before == pytest.approx(expected)


def test_without_samples_intervals_that_lie_apart_are_a_change(make: Make) -> None:
    """In either direction, of the speedup alone: the intervals are of nothing else."""
    a, b = (make(name, pld=factor, samples=False) for name, factor in (("a", 1.0), ("b", 4.0)))
    for before, after in ((a, b), (b, a)):
        assert change(before, after, "speedup").beyond
        assert change(before, after, "mean acceptance length").beyond is None


def test_a_change_from_nothing_has_no_percentage() -> None:
    found = Change("t", "pld", 0.0, 1, "tokens/s", 0.0, 5.0, beyond=None, regression=False)
    assert found.sentence == "tokens/s of pld 0.00→5.00 (noise not known)"
