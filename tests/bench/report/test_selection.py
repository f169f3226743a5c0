"""Which runs a report shows together."""

from __future__ import annotations

import synthetic
from foretoken.bench.report import selection
from foretoken.bench.report.selection import Setting

PART = synthetic.results(temperatures=(1.0, 0.0), sizes=(4, 1))


def test_settings_ascend() -> None:
    """By temperature, then batch size; the smallest batch has one for each temperature."""
    every = [Setting(0.0, 1), Setting(0.0, 4), Setting(1.0, 1), Setting(1.0, 4)]
    assert selection.settings(PART) == every
    assert selection.smallest_batch(PART) == [every[0], every[2]]


def test_plain_decoding_comes_first_and_then_the_fastest() -> None:
    """The order is that of the first setting's speedups, in every setting."""
    order = selection.method_order([PART])
    assert order[0] == "autoregressive" and sorted(order) == sorted(synthetic.METHODS)
    speedups = [run["speedup"] or 0.0 for run in selection.drafting_runs(PART, Setting(0.0, 1))]
    assert speedups == sorted(speedups, reverse=True)
    later = [run["method"] for run in selection.runs_at(PART, Setting(1.0, 4))]
    assert later == order


def test_the_fastest_keeps_the_targets_text() -> None:
    """An approximate method is never it, however fast."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    best = selection.fastest(part, Setting(0.0, 1))
    assert best is not None and not selection.approximate(best)
    for run in part["runs"]:
        if selection.approximate(run):
            run["speedup"] = 99.0
    assert selection.fastest(part, Setting(0.0, 1)) == best


def test_a_winner_needs_evidence() -> None:
    """Eight prompts, and an interval above 1; the next best never takes its place."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    setting = Setting(0.0, 1)
    best = selection.fastest(part, setting)
    assert best is not None and selection.winner(part, setting) is best
    for change in ({"prompts": 7}, {"speedup_ci95": [1.0, 2.0]}, {"speedup_ci95": None}):
        before = dict(best)
        best |= change  # type: ignore[typeddict-item]
        assert selection.winner(part, setting) is None
        best |= before  # type: ignore[typeddict-item]


def test_what_is_beyond_doubt() -> None:
    """Every exact method with the evidence, also where the fastest has none."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    names = ["sps", "token_recycling", "pld", "lookahead"]
    assert [r["method"] for r in selection.beyond_doubt(part, Setting(0.0, 1))] == names
    for run in part["runs"]:
        if run["method"] == "sps":
            run["speedup_ci95"] = [0.9, 3.0]
        elif run["method"] == "pld":
            run["prompts"] = 7
    names = ["token_recycling", "lookahead"]
    assert [r["method"] for r in selection.beyond_doubt(part, Setting(0.0, 1))] == names


def test_the_target_with_most_to_say_comes_first() -> None:
    """The one with most prompts in compared runs; of equal ones the one with the larger gain."""
    few, many, more = (synthetic.results(name, sizes=(1,)) for name in ("a", "b", "c"))
    few["runs"] = few["runs"][:2]
    for run in more["runs"]:
        if run["method"] == "sps":
            run["speedup"] = 2.5
            run["speedup_ci95"] = [2.0, 3.0]
    nothing = synthetic.results("d", sizes=())
    order = selection.telling_first([nothing, few, many, more])
    assert [part["target"]["dtype"] for part in order] == ["c", "b", "a", "d"]
    for run in more["runs"]:
        run["speedup_ci95"] = [0.9, 3.0]  # a gain in doubt is none
    order = selection.telling_first([many, more])
    assert [part["target"]["dtype"] for part in order] == ["b", "c"]


def test_the_batch_size_is_shown_where_it_is_not_1() -> None:
    """A single batch size other than 1 is named too."""
    assert selection.shows_batch_size(PART)
    assert not selection.shows_batch_size(synthetic.results(sizes=(1,)))
    assert selection.shows_batch_size(synthetic.results(sizes=(4,)))


def test_tokens_that_strayed_make_a_method_approximate() -> None:
    """Also one that no table knows."""
    run = synthetic.results(temperatures=(0.0,), sizes=(1,))["runs"][1]
    run["method"] = "mine"
    assert not selection.approximate(run)
    run["stray_rate"] = 0.0
    assert selection.approximate(run)
