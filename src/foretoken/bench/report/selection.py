"""Which runs of a measurement a report shows together, and in which order."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from foretoken.bench.record import BASELINE, Results, Run
from foretoken.methods import METHODS

LEAST_PROMPTS = 8
"""With fewer no method is said to win."""


class Setting(NamedTuple):
    """Runs at the same setting are compared."""

    temperature: float
    batch_size: int


def approximate(run: Run) -> bool:
    """Whether the method may write what the target would not have written."""
    row = METHODS.get(run["method"])
    return run["stray_rate"] is not None or (row is not None and not row.lossless)


def settings(results: Results) -> list[Setting]:
    """The temperatures and batch sizes that occur, ascending."""
    return sorted({Setting(run["temperature"], run["batch_size"]) for run in results["runs"]})


def smallest_batch(results: Results) -> list[Setting]:
    """The settings of the smallest batch size: one for each temperature."""
    all_settings = settings(results)
    least = min((s.batch_size for s in all_settings), default=1)
    return [s for s in all_settings if s.batch_size == least]


def shows_batch_size(results: Results) -> bool:
    """Whether the batch size has to be named."""
    return any(run["batch_size"] != 1 for run in results["runs"])


def runs_at(results: Results, setting: Setting) -> list[Run]:
    """The runs of one setting, in the order of `method_order`."""
    places = {name: i for i, name in enumerate(method_order([results]))}
    runs = [r for r in results["runs"] if (r["temperature"], r["batch_size"]) == setting]
    return sorted(runs, key=lambda run: places[run["method"]])


def drafting_runs(results: Results, setting: Setting) -> list[Run]:
    """All runs of a setting but the baseline's."""
    return [run for run in runs_at(results, setting) if run["method"] != BASELINE]


def method_order(results: Seq[Results]) -> list[str]:
    """All methods: plain decoding, then by speedup in the first setting, the fastest first."""
    runs = [run for part in results for run in part["runs"]]
    names = dict.fromkeys(run["method"] for run in runs)
    first = min((Setting(r["temperature"], r["batch_size"]) for r in runs), default=None)
    speed: dict[str, float] = {}
    for run in runs:
        if (run["temperature"], run["batch_size"]) == first and run["speedup"] is not None:
            speed.setdefault(run["method"], run["speedup"])
    return sorted(names, key=lambda name: (name != BASELINE, -speed.get(name, 0.0)))


def tasks(results: Results) -> list[str]:
    return list(dict.fromkeys(task for run in results["runs"] for task in run["by_task"]))


def fastest(results: Results, setting: Setting) -> Run | None:
    """The fastest run of a setting that drafts and keeps the target's text or distribution."""
    candidates = [r for r in drafting_runs(results, setting) if r["speedup"] and not approximate(r)]
    return max(candidates, key=lambda run: run["speedup"] or 0.0, default=None)


def beyond_doubt(results: Results, setting: Setting) -> list[Run]:
    """The runs of a setting that keep the target's text or distribution, answered `LEAST_PROMPTS`
    or more, and whose interval lies above 1."""
    return [
        run
        for run in drafting_runs(results, setting)
        if not approximate(run)
        and run["prompts"] >= LEAST_PROMPTS
        and (run["speedup_ci95"] or [0.0])[0] > 1
    ]


def winner(results: Results, setting: Setting) -> Run | None:
    """The fastest run of a setting, where it is so `beyond_doubt`; only such a run is ever called
    the fastest, or printed in bold."""
    run = fastest(results, setting)
    return run if run in beyond_doubt(results, setting) else None


def telling_first(results: Seq[Results]) -> list[Results]:
    """The targets by how much they tell: first the one with most prompts, counted once for each
    run that has a speedup; of equal ones, the one where the winner of a setting gains most."""
    return sorted(results, key=lambda part: (-_compared(part), -_gain(part)))


def _compared(part: Results) -> int:
    drafting = [run for run in part["runs"] if run["method"] != BASELINE]
    return sum(run["prompts"] for run in drafting if run["speedup"] is not None)


def _gain(part: Results) -> float:
    winners = [winner(part, setting) for setting in settings(part)]
    return max((run["speedup"] or 0.0 for run in winners if run is not None), default=0.0)
