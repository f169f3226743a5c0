"""Where the marks of the report's charts go; the templates draw them.

Units are those of a chart's own drawing area, `WIDTH` by `HEIGHT`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from foretoken.bench.record import BASELINE, Measured, Results, Run
from foretoken.bench.report import selection, wording

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 38, 10, 26, 36
COLOURS, SHAPES = 8, 4
_NUDGE = 5.0  # between the marks of different methods at one place
_LABEL = 20.0  # room for a place's label


@dataclass(frozen=True)
class Look:
    """A method's colour and shape in every chart; colour 0 is plain decoding's grey."""

    colour: int
    shape: int


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Each method's colour and shape; the first 32 all differ."""
    drafting = [name for name in methods if name != BASELINE]
    by_method = {
        name: Look(i % COLOURS + 1, (i + i // COLOURS) % SHAPES) for i, name in enumerate(drafting)
    }
    return {BASELINE: Look(0, 0), **by_method}


def share(value: float, end: float, start: float = 0.0) -> str:
    """How far along an axis from `start` to `end`, as SVG wants it."""
    return f"{100 * min(max((value - start) / (end - start), 0.0), 1.0):.2f}%"


def far_end(parts: Iterable[Measured]) -> float:
    """Right end of speedup bars: 5 % more than every speedup and interval."""
    ends = [1.0]
    for part in parts:
        ends += [part["speedup"] or 0.0, *(part["speedup_ci95"] or [])]
    return max(ends) * 1.05


def tasks_end(runs: Iterable[Run]) -> float:
    """Right end of speedup bars by task."""
    return far_end(part for run in runs for part in run["by_task"].values())


def ideal_span(runs: Seq[Run]) -> tuple[float, float]:
    """(left, right) end of the dots of measured and ideal speedups."""
    marks = [1.0]
    for run in runs:
        ideal = run["ideal"]
        if ideal is not None:
            speedups = run["speedup"], ideal["from_pass_costs"], ideal["from_bytes"]
            marks += [mark for mark in speedups if mark is not None]
    room = 0.06 * (max(marks) - min(marks)) or 0.1
    return min(marks) - room, max(marks) + room


def on_task(runs: Iterable[Run], task: str) -> list[tuple[str, Measured]]:
    """The numbers of each method that was measured on the task."""
    return [(run["method"], run["by_task"][task]) for run in runs if task in run["by_task"]]


@dataclass(frozen=True)
class Mark:
    """A measured point; `low` and `high` are the ends of its interval, if it has one."""

    x: float
    y: float
    low: float | None
    high: float | None
    label: str


@dataclass(frozen=True)
class Line:
    """One method's marks."""

    method: str
    marks: tuple[Mark, ...]

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{mark.x:.1f} {mark.y:.1f}" for mark in self.marks)


@dataclass(frozen=True)
class Chart:
    """Lines over axes; ticks are (place, label); `one` is where a speedup of 1 lies."""

    title: str
    across: str
    up: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    one: float | None = None


Value = tuple[float, Seq[float] | None]
"""A value and its interval."""


def each_position(part: Results) -> list[Chart]:
    """Acceptance by position in the draft, a chart for each temperature."""
    charts = [_positions(part, setting) for setting in selection.smallest_batch(part)]
    return [chart for chart in charts if chart is not None]


def sweeps(part: Results) -> list[Chart]:
    """Speedup by temperature, and by batch size at each temperature, where there are several."""
    by_temperature = _temperatures(part)
    return [*([by_temperature] if by_temperature else []), *_batch_sizes(part)]


def _positions(part: Results, setting: selection.Setting) -> Chart | None:
    values: dict[str, dict[float, Value]] = {}
    for run in selection.drafting_runs(part, setting):
        rates = run["acceptance_rate_per_position"]
        if rates:
            values[run["method"]] = {i + 1: (100 * rate, None) for i, rate in enumerate(rates)}
    return _chart(
        wording.setting_text(setting, part), "position in the draft", "accepted, %", values, 100.0
    )


def _temperatures(part: Results) -> Chart | None:
    settings = selection.smallest_batch(part)
    if len(settings) < 2:
        return None
    size = f", batch size {settings[0].batch_size}" if selection.shows_batch_size(part) else ""
    runs = [(s.temperature, run) for s in settings for run in selection.drafting_runs(part, s)]
    return _speedup_chart(part, f"by temperature{size}", "temperature", runs)


def _batch_sizes(part: Results) -> list[Chart]:
    settings = selection.settings(part)
    charts = []
    for temperature in sorted({s.temperature for s in settings}):
        at_temperature = [s for s in settings if s.temperature == temperature]
        runs = [
            (float(s.batch_size), run)
            for s in at_temperature
            for run in selection.drafting_runs(part, s)
        ]
        title = f"by batch size, temperature {temperature:g}"
        chart = _speedup_chart(part, title, "batch size", runs)
        if len(at_temperature) > 1 and chart is not None:
            charts.append(chart)
    return charts


def _speedup_chart(
    part: Results, title: str, across: str, runs: Iterable[tuple[float, Run]]
) -> Chart | None:
    """A chart of speedups, to the scale of all of a part's charts."""
    return _chart(title, across, "speedup", _speedups(runs), far_end(part["runs"]), one=True)


def _speedups(runs: Iterable[tuple[float, Run]]) -> dict[str, dict[float, Value]]:
    values: dict[str, dict[float, Value]] = {}
    for place, run in runs:
        if run["speedup"] is not None:
            values.setdefault(run["method"], {})[place] = run["speedup"], run["speedup_ci95"]
    return values


def _chart(
    title: str,
    across: str,
    up: str,
    values: Mapping[str, Mapping[float, Value]],
    end: float,
    *,
    one: bool = False,
) -> Chart | None:
    """Places are evenly spaced, whatever their values, and labelled where there is room; the top is
    a round number."""
    places = sorted({place for own in values.values() for place in own})
    if not places:
        return None
    ticks = steps(end)
    gap = (WIDTH - LEFT - RIGHT) / len(places)
    x = {place: LEFT + (i + 0.5) * gap for i, place in enumerate(places)}
    lines = []
    for i, (method, own) in enumerate(values.items()):
        nudge = (i - (len(values) - 1) / 2) * min(_NUDGE, 0.6 * gap / len(values)) if one else 0.0
        marks = [_mark(x[place] + nudge, *own[place], ticks[-1]) for place in sorted(own)]
        lines.append(Line(method, tuple(marks)))
    return Chart(
        title,
        across,
        up,
        tuple((x[place], f"{place:g}") for place in places[:: math.ceil(_LABEL / gap)]),
        tuple((_up(value, ticks[-1]), f"{value:g}") for value in ticks),
        tuple(lines),
        _up(1, ticks[-1]) if one else None,
    )


def _mark(x: float, value: float, interval: Seq[float] | None, top: float) -> Mark:
    low, high = interval or (None, None)
    label = f"{value:.3g}" + (f" ({low:.2f}–{high:.2f})" if interval else "")
    ends = [None if edge is None else _up(edge, top) for edge in (low, high)]
    return Mark(x, _up(value, top), ends[0], ends[1], label)


def _up(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def steps(end: float) -> list[float]:
    """About five round numbers from 0 to `end` or slightly more."""
    rough = end / 5
    size = 10 ** math.floor(math.log10(rough))
    step = size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)
    return [i * step for i in range(math.ceil(end / step - 1e-6) + 1)]
