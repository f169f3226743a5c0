"""A run's numbers as text, the same in the terminal, in report.md and in report.html."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from foretoken.bench.record import BASELINE, Identity, Measured, Results, Run, Target
from foretoken.bench.report.layout import NONE
from foretoken.bench.report.selection import (
    LEAST_PROMPTS,
    Setting,
    approximate,
    beyond_doubt,
    fastest,
    method_order,
    runs_at,
    settings,
    shows_batch_size,
    winner,
)
from foretoken.methods import METHODS


@dataclass(frozen=True)
class Column:
    """short: the head in a terminal, which leaves the column out if narrower than `least`."""

    name: str
    short: str
    cell: Callable[[Run], str]
    left: bool = False
    least: int = 0


def bracketed(pieces: Seq[str], accepted: Seq[bool]) -> str:
    """An answer's text; what was drafted and accepted stands between ⟦ and ⟧."""
    both = zip(pieces, accepted, strict=True)
    return "".join(f"⟦{piece}⟧" if drafted else piece for piece, drafted in both).replace("⟧⟦", "")


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
    if ends is None or part.get("method") == BASELINE:
        return NONE
    return f"{ends[0]:.2f}–{ends[1]:.2f}"


def count(number: int, thing: str) -> str:
    """ "1 prompt", "2 prompts"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def same_text(run: Run) -> str:
    return sameness(run["method"], run["identical_to_autoregressive"]) if run["prompts"] else NONE


def sameness(method: str, identity: Identity | None) -> str:
    """Whether the text is plain decoding's."""
    if method == BASELINE:
        return NONE
    if identity is None:
        row = METHODS.get(method)
        return "same distribution" if row is not None and row.lossless else "not claimed"
    if identity["different"]:
        return f"{identity['different']} of {identity['prompts']} differ"
    if identity["near_tie"]:
        return f"yes, but {count(identity['near_tie'], 'near tie')}"
    return "yes"


def labels(results: Seq[Results]) -> dict[str, str]:
    """Method -> its name, marked where it is approximate."""
    by_method = {name: name for name in method_order(results)}
    for part in results:
        for run in part["runs"]:
            if approximate(run):
                by_method[run["method"]] = f"{run['method']} ≈"
    return by_method


def step_ms(run: Run, part: str) -> float | None:
    """Milliseconds of a step spent on `part`, or None where that was not measured, as of a server,
    which doesn't report its parts."""
    return run["ms_per_step"][part] if run["ms_per_step"]["verify"] else None


_WORDS = {
    BASELINE: "plain decoding",
    "sps": "a small draft model",
    "bild": "a small model that falls back",
    "specinfer": "a small model's trees",
    "spectr": "a small model's branches",
    "mcsd": "a small model's trees",
    "sequoia": "a small model's planned trees",
    "staged": "a small model, drafted for in turn",
    "cs_drafting": "a cascade of draft models",
    "pld": "prompt lookup",
    "llma": "copying from references",
    "sad": "copying the input",
    "suffix": "a suffix tree",
    "sam": "a suffix automaton",
    "rest": "retrieval",
    "jacobi": "Jacobi decoding",
    "gauss_seidel": "Jacobi decoding in blocks",
    "lookahead": "lookahead decoding",
    "draft_verify": "drafting with half of the layers",
    "early_exit": "drafting with the first layers",
    "substitute": "drafting with a 4-bit copy",
    "auto": "choosing at every step",
}
COLUMNS = (
    Column("tokens/s", "tokens\n/s", lambda run: number(run["tokens_per_second"], ",.0f")),
    Column("speedup", "speedup", lambda run: times(run["speedup"])),
    Column("95 % interval", "95 %\ninterval", interval),
    Column(
        "mean acceptance length", "mean\nlength", lambda run: number(run["mean_acceptance_length"])
    ),
    Column("accepted", "drafts\nkept", lambda run: percent(run["draft_acceptance_rate"]), least=98),
    Column("draft ms", "draft\nms", lambda run: number(step_ms(run, "draft")), least=90),
    Column("verify ms", "verify\nms", lambda run: number(step_ms(run, "verify")), least=90),
    Column("other ms", "other\nms", lambda run: number(step_ms(run, "other")), least=106),
    Column("same text", "same\ntext", same_text, left=True),
)
"""What is shown of every run, after its method, temperature and batch size."""


def cells(run: Run) -> tuple[str, ...]:
    """One run's cells, in the order of `COLUMNS`."""
    return tuple(column.cell(run) for column in COLUMNS)


def setting_text(setting: Setting, results: Results) -> str:
    """A setting as text."""
    text = f"temperature {setting.temperature:g}"
    return f"{text}, batch size {setting.batch_size}" if shows_batch_size(results) else text


def title(results: Results) -> str:
    """The target, with its size, dtype and, where its cost is inflated, the shape."""
    target = results["target"]
    if "server" in target:
        return f"{target['name']} (at {target['server']})"
    known = target["parameters"]  # 0 in an unfinished run, whose folder doesn't tell
    size = f"{known / 1e6:.1f} M parameters, " if known else ""
    shape = f", inflated to the {target['inflated']} shape" if target.get("inflated") else ""
    return f"{target['name']} ({size}{weights(target)}{shape})"


def short_title(results: Results) -> str:
    """The target as the head of a column."""
    target = results["target"]
    return f"{target['name']}, {weights(target)}{', inflated' if target.get('inflated') else ''}"


def weights(target: Target) -> str:
    """What a target's weights are while it runs."""
    backend = target.get("backend", "")
    narrow = {"blocks": "weights as its file has them", "int8": "int8 weights"}
    narrow |= {f"q{bits}": f"weights of {bits} bits" for bits in (4, 5, 6, 8)}
    return narrow.get(backend.rpartition("+")[2], target["dtype"])


def machine(results: Results) -> str:
    """What the target ran on; of a server, which doesn't tell, what it was asked from. A record
    without a device is taken to be of the GPU, where there was one."""
    known, target = results["environment"], results["target"]
    on_gpu = "server" not in target and target.get("device") != "cpu"
    name = (on_gpu and known.get("gpu")) or known.get("cpu") or "an unknown machine"
    return f"{'asked from ' * ('server' in target)}{name}"


def unfinished(results: Results) -> str:
    """ "Unfinished: 12 of 80 prompts."; nothing for a run that is finished."""
    suite = results["suite"]
    if "planned" not in suite:
        return ""
    if suite["planned"] is None:
        return f"Unfinished: {count(suite['prompts'], 'prompt')} so far."
    return f"Unfinished: {suite['prompts']} of {count(suite['planned'], 'prompt')}."


def coverage(results: Results) -> str:
    """How many prompts the averages are of, and how many are left out."""
    suite = results["suite"]
    if not suite["prompts"] and unfinished(results):
        return unfinished(results)
    left, skipped = len(suite["left_out"]), len(suite["skipped"])
    failed = sum(run["failed"] for run in results["runs"])
    text = f"Averages over {count(suite['prompts'], 'prompt')}"
    if not suite["distinct_4_threshold"]:
        text += ", also those to which plain decoding's answer loops."
    elif left:
        text = (
            f"Averages over {suite['prompts'] - left} of {suite['prompts']} prompts: {left} "
            f"{'is' if left == 1 else 'are'} left out because plain decoding's answer loops (fewer "
            f"than {percent(suite['distinct_4_threshold'])} of its 4-grams are different)."
        )
        text += " None is left; --keep-loops counts them." if left == suite["prompts"] else ""
    else:
        text += ", none of which made the target loop."
    if skipped:
        text += f" {count(skipped, 'prompt')} skipped: too long for the target's context."
    if failed:
        text += f" {count(failed, 'answer')} failed."
    return f"{unfinished(results)} {text}".lstrip()


def headline(results: Results) -> str:
    """What drafting gains at the lowest temperature and batch size, in one sentence. The fastest
    method is only called so where it is the `winner`; else those `beyond_doubt` are named."""
    setting = min(settings(results), default=Setting(0.0, 1))
    run = fastest(results, setting)
    if run is None or run["speedup"] is None:
        return "Nothing was measured that can be compared."
    at, name, ends = setting_text(setting, results), spelled(run["method"]), interval(run)
    gain = f"{run['speedup']:.2f} times as many tokens a second as plain decoding"
    gain += f" (95 % interval {ends})" if ends != NONE else ""
    surer = beyond_doubt(results, setting)
    if winner(results, setting) is not None:
        same = run["identical_to_autoregressive"]
        text = f"At {at}, {name} is the fastest: {gain}"
        if same is not None:
            text += f", with the same tokens on {same['identical']} of {same['prompts']} prompts"
    elif run["prompts"] < LEAST_PROMPTS:
        few = count(run["prompts"], "prompt")
        text = f"At {at}, {few} {'is' if run['prompts'] == 1 else 'are'} too few for a winner: "
        text += f"{name} wrote {gain}{_surer(surer)}"
    elif surer:
        text = f"At {at}, {name} wrote {gain}, which isn't beyond doubt{_surer(surer)}"
    else:
        text = f"At {at}, nothing is faster than plain decoding beyond doubt: {name} wrote {gain}"
    aside = any(approximate(other) for other in runs_at(results, setting))
    return f"{text}.{' Approximate methods are left aside.' * aside}"


def _surer(runs: Seq[Run]) -> str:
    """The methods that are faster beyond doubt, after one that isn't."""
    names = ", ".join(spelled(run["method"]) for run in runs)
    return f"; {names} {'is' if len(runs) == 1 else 'are'} faster beyond doubt" if runs else ""


def words(method: str) -> str:
    """What a method is, for those who don't know its label; nothing where the label says it."""
    return _WORDS.get(method, "")


def spelled(method: str) -> str:
    """A method's label with what it is, for those who don't know the label."""
    if method == BASELINE:
        return words(method)
    return f"{words(method)} ({method})" if words(method) else method


def legend(results: Seq[Results]) -> str:
    """What each measured method is, where its label doesn't say it; nothing where all do."""
    named = [name for name in method_order(results) if words(name)]
    return "; ".join(f"{name}: {words(name)}" for name in named)
