"""Where the marks of charts lie."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import synthetic
from foretoken.bench.report import charts


def test_methods_are_told_apart_by_more_than_colour() -> None:
    """32 methods have different pairs of colour and shape; plain decoding is grey."""
    names = [f"m{i}" for i in range(32)]
    found = charts.looks(["autoregressive", *names])
    assert len({found[name] for name in names}) == 32
    assert found["autoregressive"].colour == 0 not in {found[name].colour for name in names}


def test_marks_lie_where_their_numbers_are() -> None:
    """A mark, its interval and the line of plain decoding against the axis they are drawn on."""
    part = synthetic.results(temperatures=(0.0, 1.0), sizes=(1,))
    [chart] = charts.sweeps(part)
    assert [label for _, label in chart.x_ticks] == ["0", "1"]
    (floor, zero), (top, end) = chart.y_ticks[0], chart.y_ticks[-1]
    assert zero == "0" and chart.one is not None

    def value(place: float) -> float:
        return (floor - place) / (floor - top) * float(end)

    line = next(line for line in chart.lines if line.method == "sps")
    runs = [run for run in part["runs"] if run["method"] == "sps"]
    assert [value(mark.y) for mark in line.marks] == pytest.approx([r["speedup"] for r in runs])
    ends = runs[0]["speedup_ci95"]
    assert [value(y) for y in (line.marks[0].low, line.marks[0].high) if y] == pytest.approx(ends)
    assert value(chart.one) == pytest.approx(1)
    assert abs(line.marks[0].x - chart.x_ticks[0][0]) < 15


def test_labels_of_places_have_room() -> None:
    """Of many positions not all are labelled; every one has its mark."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    for count, labelled in ((5, 5), (64, 13)):
        for run in part["runs"]:
            if run["method"] != "autoregressive":
                run["acceptance_rate_per_position"] = [0.5] * count
        [chart] = charts.each_position(part)
        assert len(chart.lines[0].marks) == count and len(chart.x_ticks) == labelled
        assert chart.x_ticks[0][1] == "1"
        places = [place for place, _ in chart.x_ticks]
        assert min(b - a for a, b in pairwise(places)) >= 20


@pytest.mark.parametrize("end", [0.3, 1.0, 1.98, 2.0, 7.3, 100.0])
def test_axes_end_just_beyond_what_they_show(end: float) -> None:
    """By at most one step, in three to eight steps."""
    found = charts.steps(end)
    assert found[0] == 0 and end <= found[-1] * 1.0001 < end + found[1] * 1.0001
    assert 3 <= len(found) <= 8


def test_shares_stay_on_the_axis() -> None:
    """Values outside of it lie at its ends."""
    assert charts.share(1, 2) == "50.00%" and charts.share(1.5, 2, 1) == "50.00%"
    assert charts.share(9, 2) == "100.00%" and charts.share(-1, 2) == "0.00%"


def test_where_bars_and_dots_end() -> None:
    """Beyond every interval; and of equal dots there is room to either side."""
    part: Any = synthetic.results(temperatures=(0.0,), sizes=(1,))
    for run in part["runs"]:
        run |= {"speedup": 1.2, "speedup_ci95": [1.1, 1.5], "ideal": None}
    assert charts.far_end(part["runs"]) == pytest.approx(1.05 * 1.5)
    assert charts.ideal_span(part["runs"]) == (0.9, 1.1)


def test_one_setting_makes_no_sweep() -> None:
    """Nor does one temperature or one batch size beside several of the other."""
    for temperatures, sizes, titles in (
        ((0.0,), (1,), []),
        ((0.0,), (1, 4), ["by batch size, temperature 0"]),
        ((0.0, 1.0), (1,), ["by temperature"]),
    ):
        part = synthetic.results(temperatures=temperatures, sizes=sizes)
        assert [chart.title for chart in charts.sweeps(part)] == titles


@pytest.mark.parametrize(
    ("end", "ticks"),
    [(1.9, [0, 0.5, 1, 1.5, 2]), (5.0, [0, 1, 2, 3, 4, 5]), (100.0, [0, 20, 40, 60, 80, 100])],
)
def test_ticks_are_round_numbers(end: float, ticks: list[float]) -> None:
    assert charts.steps(end) == pytest.approx(ticks)
