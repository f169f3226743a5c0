"""The numbers of a run in words, the same in the terminal, in report.md and in report.html."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from foretoken.bench.record import Identity, Measured, Results, Run
from foretoken.bench.report.layout import NONE
from foretoken.methods import METHODS

BASELINE = "autoregressive"


class Setting(NamedTuple):
    """What the runs of one comparison share."""

    temperature: float
    batch_size: int


@dataclass(frozen=True)
class Column:
    """`short` heads it in a terminal; one narrower than `least` goes without it."""

    name: str
    short: str
    cell: Callable[[Run], str]
    left: bool = False
    least: int = 0


def number(value: float | None, form: str = ".2f") -> str:
    return NONE if value is None else format(value, form)


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def small_percent(value: float | None) -> str:
    """With one place, for shares that are mostly near 0 or near each other."""
    return NONE if value is None else f"{100 * value:.1f} %"


def interval(part: Measured | Run) -> str:
    ends = part["speedup_ci95"]
    if ends is None or part["mean_acceptance_length"] is None or part.get("method") == BASELINE:
        return NONE
    return f"{ends[0]:.2f}–{ends[1]:.2f}"


def count(number: int, thing: str) -> str:
    """ "1 prompt", "2 prompts"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def same(run: Run) -> str:
    return sameness(run["method"], run["identical_to_autoregressive"]) if run["prompts"] else NONE


def sameness(method: str, found: Identity | None) -> str:
    """Whether the text is plain decoding's own."""
    if method == BASELINE:
        return NONE
    if found is None:
        row = METHODS.get(method)
        return "same distribution" if row is not None and row.lossless else "not claimed"
    if found["different"]:
        return f"{found['different']} of {found['prompts']} differ"
    if found["near_tie"]:
        return f"yes, but {count(found['near_tie'], 'near tie')}"
    return "yes"


def approximate(run: Run) -> bool:
    """Whether the method may write what the target would not have written."""
    row = METHODS.get(run["method"])
    return run["stray_rate"] is not None or (row is not None and not row.lossless)


def labels(results: Seq[Results]) -> dict[str, str]:
    """Method -> its name, marked where it is approximate."""
    found = {name: name for name in order(results)}
    for part in results:
        for run in part["runs"]:
            if approximate(run):
                found[run["method"]] = f"{run['method']} ≈"
    return found


def step(run: Run, part: str) -> float | None:
    """Milliseconds of a step spent on `part`, or None where that was not measured, as of a server,
    which doesn't tell its parts apart."""
    return run["ms_per_step"][part] if run["ms_per_step"]["verify"] else None


COLUMNS = (
    Column("tokens/s", "tokens\n/s", lambda run: number(run["tokens_per_second"], ",.0f")),
    Column("speedup", "speedup", lambda run: times(run["speedup"])),
    Column("95 % interval", "95 %\ninterval", interval),
    Column(
        "mean acceptance length", "mean\nlength", lambda run: number(run["mean_acceptance_length"])
    ),
    Column("accepted", "drafts\nkept", lambda run: percent(run["draft_acceptance_rate"]), least=98),
    Column("draft ms", "draft\nms", lambda run: number(step(run, "draft")), least=90),
    Column("verify ms", "verify\nms", lambda run: number(step(run, "verify")), least=90),
    Column("other ms", "other\nms", lambda run: number(step(run, "other")), least=106),
    Column("same text", "same\ntext", same, left=True),
)
"""What is shown of every run, after its method, temperature and batch size."""


def cells(run: Run) -> tuple[str, ...]:
    """One run's cells, in the order of `COLUMNS`."""
    return tuple(column.cell(run) for column in COLUMNS)


def settings(results: Results) -> list[Setting]:
    """The temperatures and batch sizes that occur, ascending."""
    return sorted({Setting(run["temperature"], run["batch_size"]) for run in results["runs"]})


def singly(results: Results) -> list[Setting]:
    """The settings of the smallest batch size: one for each temperature."""
    found = settings(results)
    least = min((s.batch_size for s in found), default=1)
    return [s for s in found if s.batch_size == least]


def batched(results: Results) -> bool:
    """Whether the batch size has to be named."""
    return any(run["batch_size"] != 1 for run in results["runs"])


def at(results: Results, setting: Setting) -> list[Run]:
    """The runs of one setting, in the order of `order`."""
    places = {name: i for i, name in enumerate(order([results]))}
    found = [r for r in results["runs"] if (r["temperature"], r["batch_size"]) == setting]
    return sorted(found, key=lambda run: places[run["method"]])


def drafting(results: Results, setting: Setting) -> list[Run]:
    """All runs of a setting but the baseline's."""
    return [run for run in at(results, setting) if run["method"] != BASELINE]


def order(results: Seq[Results]) -> list[str]:
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


def when(setting: Setting, results: Results) -> str:
    """A setting in words."""
    text = f"temperature {setting.temperature:g}"
    return f"{text}, batch size {setting.batch_size}" if batched(results) else text


def title(results: Results) -> str:
    """The target, never without the word where its cost is inflated."""
    target = results["target"]
    if "server" in target:
        return f"{target['name']} (at {target['server']})"
    size = f"{target['parameters'] / 1e6:.1f} M parameters, {target['dtype']}"
    shape = f", inflated to the {target['inflated']} shape" if target.get("inflated") else ""
    return f"{target['name']} ({size}{shape})"


def short_title(results: Results) -> str:
    """The target as the head of a column."""
    target = results["target"]
    return f"{target['name']}, {target['dtype']}{', inflated' if target.get('inflated') else ''}"


def coverage(results: Results) -> str:
    """How many prompts the averages stand on, and which are left out."""
    suite = results["suite"]
    left, skipped = len(suite["left_out"]), len(suite["skipped"])
    failed = sum(run["failed"] for run in results["runs"])
    if left:
        text = (
            f"Averages over {suite['prompts'] - left} of {suite['prompts']} prompts: {left} "
            f"{'is' if left == 1 else 'are'} left out because the plain greedy answer loops (fewer "
            f"than {percent(suite['distinct_4_threshold'])} of its 4-grams are different)."
        )
    else:
        text = (
            f"Averages over {count(suite['prompts'], 'prompt')}, none of which made the target "
            "loop."
        )
    if skipped:
        text += f" {count(skipped, 'prompt')} skipped: too long for the target's context."
    if failed:
        text += f" {count(failed, 'answer')} failed."
    return text


def best(results: Results, setting: Setting) -> Run | None:
    """The fastest run of a setting that drafts and keeps the target's own text or distribution."""
    found = [r for r in drafting(results, setting) if r["speedup"] and not approximate(r)]
    return max(found, key=lambda run: run["speedup"] or 0.0, default=None)


def headline(results: Results) -> str:
    """What was found at the lowest temperature and batch size, in one sentence."""
    setting = min(settings(results), default=Setting(0.0, 1))
    run = best(results, setting)
    if run is None or run["speedup"] is None:
        return "Nothing was measured that can be compared."
    same, ends = run["identical_to_autoregressive"], interval(run)
    text = f" (95 % interval {ends})" if ends != NONE else ""
    if same is not None:
        text += f", with the very same tokens on {same['identical']} of {same['prompts']} prompts"
    aside = any(approximate(other) for other in at(results, setting))
    return (
        f"At {when(setting, results)}, {run['method']} is the fastest: {run['speedup']:.2f} times "
        f"as many tokens a second as plain decoding{text}."
        f"{' Approximate methods stand aside.' * aside}"
    )
