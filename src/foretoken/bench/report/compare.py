"""Compares two measurements: what changed, and whether that is more than noise.

A change is beyond noise where 1 lies outside of the interval of after ÷ before (see `paired.py`)
that holds for all comparisons together at 95 %: each has its share of the 5 %. Without samples of
shared prompts, a change is beyond noise where the two 95 % intervals do not overlap. Neither sees
what slows a whole run evenly, but a speedup does not depend on it: plain decoding ran alongside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretoken.bench.record import BASELINE, Results, Run
from foretoken.bench.report import paired, wording
from foretoken.bench.report.folder import read_finished
from foretoken.bench.report.layout import NONE, Cell, Group, Head, Row, Table
from foretoken.bench.report.samples import each_answer

LEVEL = 0.05
_MACHINE = ("cpu", "cores", "threads")
_RECORDED: dict[str, Callable[[Run], float | None]] = {
    "speedup": lambda run: run["speedup"],
    "mean acceptance length": lambda run: run["mean_acceptance_length"],
    "tokens/s": lambda run: run["tokens_per_second"],
}


@dataclass(frozen=True)
class Change:
    """One number of one method in both runs. beyond: beyond noise; None where not known."""

    target: str
    method: str
    temperature: float
    batch_size: int
    what: str
    before: float | str
    after: float | str
    beyond: bool | None
    regression: bool

    @property
    def percent(self) -> str:
        if isinstance(self.before, str) or isinstance(self.after, str) or not self.before:
            return NONE
        return f"{100 * (self.after / self.before - 1):+.0f} %".replace("-", "−")

    @property
    def verdict(self) -> str:
        return {True: "beyond noise", False: "within noise", None: "noise not known"}[self.beyond]

    @property
    def where(self) -> str:
        return f"{self.target}, temperature {self.temperature:g}, batch size {self.batch_size}"

    @property
    def sentence(self) -> str:
        """A sentence such as "speedup of sps 1.52→1.41 (−7 %, beyond noise)"."""
        how = self.verdict if self.percent == NONE else f"{self.percent}, {self.verdict}"
        return f"{self.what} of {self.method} {_text(self.before)}→{_text(self.after)} ({how})"


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


@dataclass
class Comparison:
    """All differences between two folders of results."""

    before: str
    after: str
    differences: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    only_before: list[str] = field(default_factory=list)
    only_after: list[str] = field(default_factory=list)

    @property
    def beyond(self) -> list[Change]:
        return [change for change in self.changes if change.beyond]

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.regression]

    def data(self) -> dict[str, Any]:
        """The comparison as data for JSON."""
        return asdict(self)


def compare(before: Path, after: Path) -> Comparison:
    """Compare two folders of results: what is finished in both. Raises `ForetokenError` where one
    has none."""
    comparison = Comparison(str(before), str(after))
    pairs = _pairs(read_finished(before), read_finished(after), comparison)
    samples = [paired.gather(each_answer(folder / "samples.jsonl")) for folder in (before, after)]
    tail = LEVEL / 2 / max(1, sum(2 * len(earlier["runs"]) for earlier, _ in pairs))
    for earlier, later in pairs:
        comparison.differences += _differences(earlier, later)
        old, new = ({_name(run): run for run in part["runs"]} for part in (earlier, later))
        gone = [name for name in old if name not in new]
        comparison.only_before += gone
        comparison.changes += [
            _failed(earlier, old[name], "not run")
            for name in gone
            if old[name]["method"] in later.get("not_run", {})
        ]
        comparison.only_after += [name for name in new if name not in old]
        left_out = {*earlier["suite"]["left_out"], *later["suite"]["left_out"]}
        for name in [name for name in old if name in new]:
            both = _both(samples[0], earlier, old[name]), _both(samples[1], later, new[name])
            units = paired.pair(*both, left_out)
            comparison.changes += _changes(earlier, later, old[name], new[name], units, tail)
    return comparison


def _name(run: Run) -> str:
    place = f"temperature {run['temperature']:g}, batch size {run['batch_size']}"
    return f"{run['method']} at {place}"


def _pairs(
    first: Seq[Results], second: Seq[Results], comparison: Comparison
) -> list[tuple[Results, Results]]:
    """Pairs of measurements of the same target at the same precision; two single measurements are
    compared in any case."""
    of_first, of_second = ({wording.short_title(p): p for p in parts} for parts in (first, second))
    shared = [name for name in of_first if name in of_second]
    if not shared and len(first) == len(second) == 1:
        return [(first[0], second[0])]
    comparison.only_before += [name for name in of_first if name not in shared]
    comparison.only_after += [name for name in of_second if name not in shared]
    return [(of_first[name], of_second[name]) for name in shared]


def _differences(before: Results, after: Results) -> list[str]:
    """Other differences of the runs: machine, software, target, prompts."""
    texts = []
    for part in ("environment", "target", "suite"):
        old, new = ({**x[part], "date": None} for x in (before, after))
        for key in dict.fromkeys([*old, *new]):
            a, b = (_brief(x.get(key)) for x in (old, new))
            if a != b:
                texts.append(f"{part}, {key.replace('_', ' ')}: {a} → {b}")
    return texts


def _brief(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value


def _both(
    samples: Mapping[paired.Key, paired.Prompts], part: Results, run: Run
) -> tuple[paired.Prompts, paired.Prompts]:
    """A run's own prompts and plain decoding's."""
    target = part["target"]["name"], part["target"]["dtype"]
    of_method, plain = (
        samples.get((*target, method, run["temperature"], run["batch_size"]), {})
        for method in (run["method"], BASELINE)
    )
    return of_method, plain


def _changes(
    part: Results, other_part: Results, run: Run, other: Run, units: paired.Sums | None, tail: float
) -> list[Change]:
    """Speed, acceptance and sameness of one method."""
    one_machine = all(
        part["environment"].get(k) == other_part["environment"].get(k) for k in _MACHINE
    ) and wording.machine(part) == wording.machine(other_part)
    who = wording.short_title(part), run["method"], run["temperature"], run["batch_size"]
    counting = {"speedup": True, "mean acceptance length": False}
    changes = []
    for what, counts in ({"tokens/s": one_machine} if who[1] == BASELINE else counting).items():
        values = _values(run, other, units, what)
        if values is not None:
            beyond = _beyond(run, other, units, what, tail)
            worse = bool(beyond) and counts and values[1] < values[0]
            changes.append(Change(*who, what, *values, beyond, worse))
    before, after = run["identical_to_autoregressive"], other["identical_to_autoregressive"]
    if run["failed"] != other["failed"]:
        changes.append(_failed(part, run, other["failed"]))
    if before and after and before["different"] != after["different"]:
        worse = after["different"] > before["different"]
        texts = wording.same_text(run), wording.same_text(other)
        changes.append(Change(*who, "same text", *texts, beyond=True, regression=worse))
    return changes


def _failed(part: Results, run: Run, after: int | str) -> Change:
    """How many prompts a method failed on, and now fails on; "not run" is worse than any number."""
    who = wording.short_title(part), run["method"], run["temperature"], run["batch_size"]
    worse = isinstance(after, str) or after > run["failed"]
    return Change(*who, "failed prompts", str(run["failed"]), str(after), True, worse)


def _values(
    run: Run, other: Run, units: paired.Sums | None, what: str
) -> tuple[float, float] | None:
    if units is not None:
        return paired.values(units, what)
    before, after = _RECORDED[what](run), _RECORDED[what](other)
    return None if before is None or after is None else (before, after)


def _beyond(run: Run, other: Run, units: paired.Sums | None, what: str, tail: float) -> bool | None:
    if units is not None:
        ends = paired.ratio_interval(units, what, tail)
        return None if ends is None else not ends[0] <= 1 <= ends[1]
    before, after = run["speedup_ci95"], other["speedup_ci95"]
    if what != "speedup" or before is None or after is None:
        return None
    return before[1] < after[0] or after[1] < before[0]


def table(comparison: Comparison) -> Table:
    """Every number that was compared."""
    heads = (
        Head("number", left=True),
        Head("before"),
        Head("after"),
        Head("change"),
        Head("verdict", left=True),
    )
    several = len({change.target for change in comparison.changes}) > 1
    keys = ("target", "T", "batch") if several else ("T", "batch")
    groups = []
    for where in dict.fromkeys(change.where for change in comparison.changes):
        changes = [change for change in comparison.changes if change.where == where]
        place = (changes[0].target, f"{changes[0].temperature:g}", str(changes[0].batch_size))
        groups.append(Group(where, place[-len(keys) :], tuple(map(_row, changes))))
    note = (
        "Beyond noise: 1 lies outside the bootstrap interval of after ÷ before, paired over shared "
        "prompts, that holds for all comparisons together at 95 %; without samples, the two 95 % "
        "intervals do not overlap."
    )
    return Table("All comparisons", "method", keys, heads, tuple(groups), note)


def _row(change: Change) -> Row:
    strong = bool(change.beyond)
    cells = (
        Cell(change.what),
        Cell(_text(change.before)),
        Cell(_text(change.after)),
        Cell(change.percent, strong=strong),
        Cell(change.verdict, strong=strong),
    )
    return Row(change.method, cells, change.method)
