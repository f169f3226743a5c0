"""The numbers of a run in words, the same in the terminal, in report.md and in report.html."""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.bench.record import Identity, Measured, Results, Run
from foretoken.methods import METHODS

BASELINE = "autoregressive"
NONE = "–"

COLUMNS = (
    "method", "T", "tokens/s", "speedup", "95 % interval", "mean acceptance length",
    "accepted", "draft ms", "verify ms", "other ms", "same text",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One run's cells, in the order of `COLUMNS`."""

    cells: tuple[str, ...]
    baseline: bool


def rows(results: Results) -> list[Row]:
    """A row for every run."""
    return [Row(cells(run), run["method"] == BASELINE) for run in results["runs"]]


def cells(run: Run) -> tuple[str, ...]:
    step = run["ms_per_step"] if run["prompts"] else dict.fromkeys(run["ms_per_step"])
    return (
        run["method"],
        f"{run['temperature']:g}",
        number(run["tokens_per_second"], ",.0f"),
        times(run["speedup"]),
        interval(run),
        number(run["mean_acceptance_length"]),
        percent(run["draft_acceptance_rate"]),
        number(step["draft"]),
        number(step["verify"]),
        number(step["other"]),
        same(run),
    )


def number(value: float | None, form: str = ".2f") -> str:
    return NONE if value is None else format(value, form)


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def interval(part: Measured | Run) -> str:
    ends = part["speedup_ci95"]
    if ends is None or part["mean_acceptance_length"] is None:
        return NONE
    return f"{ends[0]:.2f}–{ends[1]:.2f}"


def same(run: Run) -> str:
    return sameness(run["method"], run["identical_to_autoregressive"]) if run["prompts"] else NONE


def sameness(method: str, found: Identity | None) -> str:
    """Whether the text is plain decoding's own."""
    if method == BASELINE:
        return NONE
    if found is None:
        row = METHODS.get(method)
        return "same law" if row is not None and row.lossless else "not claimed"
    if found["different"]:
        return f"{found['different']} of {found['prompts']} differ"
    if found["near_tie"]:
        return f"yes, but {found['near_tie']} near tie{'s' * (found['near_tie'] > 1)}"
    return "yes"


def title(results: Results) -> str:
    """The target, never without the word where its cost is inflated."""
    target = results["target"]
    size = f"{target['parameters'] / 1e6:.1f} M parameters, {target['dtype']}"
    shape = f", inflated to the {target['inflated']} shape" if target.get("inflated") else ""
    return f"{target['name']} ({size}{shape})"


def coverage(results: Results) -> str:
    """How many prompts the averages stand on, and which are left out."""
    suite = results["suite"]
    left = len(suite["left_out"])
    if not left:
        return f"Averages over {suite['prompts']} prompts, none of which made the target loop."
    return (
        f"Averages over {suite['prompts'] - left} of {suite['prompts']} prompts: {left} "
        f"{'is' if left == 1 else 'are'} left out because the plain greedy answer loops (fewer "
        f"than {percent(suite['distinct_4_threshold'])} of its 4-grams are different)."
    )


def best(results: Results, temperature: float) -> Run | None:
    """The fastest drafting run at a temperature."""
    found = [
        run
        for run in results["runs"]
        if run["temperature"] == temperature and run["method"] != BASELINE and run["speedup"]
    ]
    return max(found, key=lambda run: run["speedup"] or 0.0, default=None)


def headline(results: Results) -> str:
    """What was found at temperature 0, in one sentence."""
    run = best(results, 0.0)
    if run is None or run["speedup"] is None:
        return "Nothing was measured that can be compared."
    same = run["identical_to_autoregressive"]
    text = ""
    if same is not None:
        text = f", with the very same tokens on {same['identical']} of {same['prompts']} prompts"
    return (
        f"At temperature 0 the fastest method, {run['method']}, wrote {run['speedup']:.2f} times "
        f"as many tokens a second as plain decoding (95 % interval {interval(run)}){text}."
    )
