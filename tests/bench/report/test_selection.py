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


def test_the_batch_size_is_shown_where_it_is_not_1() -> None:
    """A single batch size other than 1 is named too."""
    assert selection.shows_batch_size(PART)
    assert not selection.shows_batch_size(synthetic.results(sizes=(1,)))
    assert selection.shows_batch_size(synthetic.results(sizes=(4,)))
