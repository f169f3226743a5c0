"""The tables of a report, made from a record.

A table without anything in its cells is None: any part of a record may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

from foretoken.bench.record import BASELINE, LATENCIES, Crossover, Measured, Results, Run
from foretoken.bench.report import selection, wording
from foretoken.bench.report.layout import NONE, Cell, Group, Head, Row, Table, filled
from foretoken.bench.report.selection import Setting
from foretoken.bench.report.wording import number, times

Figures = Callable[[Run], Iterable[Cell | str]]


def _cell(value: Cell | str) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _keys(results: Seq[Results]) -> tuple[str, ...]:
    return ("T", "batch") if any(map(selection.shows_batch_size, results)) else ("T",)


def _key(setting: Setting, keys: Seq[str]) -> tuple[str, ...]:
    return (f"{setting.temperature:g}", str(setting.batch_size))[: len(keys)]


def _by_setting(
    title: str,
    part: Results,
    settings: Seq[Setting],
    heads: Seq[Head],
    figures: Figures,
    note: str = "",
    *,
    baseline: bool = True,
) -> Table | None:
    """A row for every run of `settings`; what is empty throughout is left out."""
    keys, labels = _keys([part]), wording.labels([part])
    groups = []
    runs_of = selection.runs_at if baseline else selection.drafting_runs
    for setting in settings:
        body = tuple(
            Row(labels[run["method"]], tuple(map(_cell, figures(run))), run["method"])
            for run in runs_of(part, setting)
        )
        groups.append(Group(wording.setting_text(setting, part), _key(setting, keys), body))
    return filled(Table(title, "method", keys, tuple(heads), tuple(groups), note))


def headline(results: Seq[Results]) -> Table | None:
    """Every method on every target, at the smallest batch size; the winners in bold. What the
    methods are stands in the first group."""
    over = [wording.short_title(part) if len(results) > 1 else "" for part in results]
    names = ("tokens/s", "speedup", "mean acceptance length", "same text")
    heads = [
        Head(name, title, left=name == "same text", short=name.replace(" ", "\n", 1))
        for title in over
        for name in names
    ]
    settings = sorted({setting for part in results for setting in selection.smallest_batch(part)})
    keys = _keys(results)
    groups = []
    for at, setting in enumerate(settings):
        body = tuple(
            Row(
                label,
                tuple(c for part in results for c in _headline_cells(part, setting, name)),
                name,
                "" if at else wording.words(name),
            )
            for name, label in wording.labels(results).items()
        )
        groups.append(Group(wording.setting_text(setting, results[0]), _key(setting, keys), body))
    note = (
        "Speedup with its 95 % interval. Bold: the fastest, if it was measured on "
        f"{selection.LEAST_PROMPTS} prompts or more and its interval lies above 1"
    )
    if any(selection.approximate(run) for part in results for run in part["runs"]):
        note += "; ≈ may write what the target would not, and is never in bold"
    table = Table("All methods by speedup", "method", keys, tuple(heads), tuple(groups), f"{note}.")
    return filled(table)


def _headline_cells(part: Results, setting: Setting, method: str) -> list[Cell]:
    run = next((run for run in selection.runs_at(part, setting) if run["method"] == method), None)
    if run is None:
        return [Cell(NONE)] * 4
    best = selection.winner(part, setting)
    strong = best is not None and best["method"] == method
    return [
        Cell(number(run["tokens_per_second"], ",.0f"), strong=strong),
        _speedup(run, strong),
        Cell(number(run["mean_acceptance_length"])),
        Cell(wording.same_text(run)),
    ]


def targets(results: Seq[Results]) -> Table | None:
    """The speedup of every method on each target, in as few columns as there are targets."""
    heads = [Head(wording.short_title(part).replace(", ", "\n")) for part in results]
    settings = sorted({setting for part in results for setting in selection.settings(part)})
    keys = _keys(results)
    groups = []
    for setting in settings:
        body = tuple(
            Row(label, tuple(_headline_cells(part, setting, name)[1] for part in results), name)
            for name, label in wording.labels(results).items()
            if name != BASELINE
        )
        groups.append(Group(wording.setting_text(setting, results[0]), _key(setting, keys), body))
    title = "Speedup on each target"
    return filled(Table(title, "method", keys, tuple(heads), tuple(groups)))


def _speedup(part: Measured | Run, strong: bool = False) -> Cell:
    ends = wording.interval(part)
    return Cell(times(part["speedup"]), "" if ends == NONE else ends, strong)


def numbers(part: Results) -> Table | None:
    """All runs with `wording.COLUMNS`."""
    heads = [Head(c.name, left=c.left, short=c.short, least=c.least) for c in wording.COLUMNS]
    return _by_setting("All runs", part, selection.settings(part), heads, wording.cells)


def by_task(part: Results) -> Table | None:
    """Speedup and mean acceptance length on every task."""
    names = selection.tasks(part)
    heads = [Head(text, task) for task in names for text in ("speedup", "length")]

    def figures(run: Run) -> Iterable[Cell | str]:
        for task in names:
            task_run = run["by_task"].get(task)
            yield Cell(NONE) if task_run is None else _speedup(task_run)
            yield NONE if task_run is None else number(task_run["mean_acceptance_length"])

    note = "Speedup with its 95 % interval; length: mean acceptance length."
    return _by_setting(
        "By task", part, selection.smallest_batch(part), heads, figures, note, baseline=False
    )


def positions(part: Results) -> Table | None:
    """Acceptance at each position of a draft."""
    settings = selection.smallest_batch(part)
    rates = [
        run["acceptance_rate_per_position"]
        for s in settings
        for run in selection.drafting_runs(part, s)
    ]
    width = max(map(len, rates), default=0)
    heads = [Head(str(i + 1)) for i in range(width)]

    def figures(run: Run) -> Iterable[str]:
        shares = run["acceptance_rate_per_position"]
        return (wording.percent(shares[i]) if i < len(shares) else NONE for i in range(width))

    title = "Accepted at each position of a draft"
    return _by_setting(title, part, settings, heads, figures, baseline=False)


def chosen(part: Results) -> Table | None:
    """How often each drafter was chosen, for methods that choose at every step."""
    names = list(dict.fromkeys(name for run in part["runs"] for name in run.get("chosen", {})))
    heads = [Head(name, "share of the passes") for name in names]

    def figures(run: Run) -> Iterable[str]:
        counts = run.get("chosen", {})
        passes = sum(counts.values())
        return (wording.percent(counts.get(name, 0) / passes) if passes else NONE for name in names)

    settings = selection.settings(part)
    return _by_setting("What was chosen", part, settings, heads, figures, baseline=False)


def tuned(part: Results) -> Table | None:
    """The options that `foretoken tune` chose, by the name under which they are measured."""
    options = part.get("tuned", {})
    heads = [
        Head(key) for key in dict.fromkeys(key for values in options.values() for key in values)
    ]
    body = tuple(
        Row(label, tuple(Cell(_option(head.text, values.get(head.text))) for head in heads), label)
        for label, values in options.items()
    )
    return filled(Table("Tuned options", "method", (), tuple(heads), (Group("", (), body),)))


def _option(name: str, value: object) -> str:
    if value is None:
        return NONE
    return Path(str(value)).name if name == "model" else str(value)


def ideal(part: Results) -> Table | None:
    """Measured speedup next to what the acceptance alone would allow."""
    heads = [
        Head("measured"),
        Head("pass costs allow"),
        Head("reached"),
        Head("bytes allow"),
        Head("reached"),
    ]

    def figures(run: Run) -> Iterable[str]:
        limits = run["ideal"]
        if limits is None:
            return (NONE,) * len(heads)
        costs, read = limits["from_pass_costs"], limits["from_bytes"]
        speedup = run["speedup"]
        shares = [speedup / limit if speedup and limit else None for limit in (costs, read)]
        reached = [wording.percent(share) for share in shares]
        return times(speedup), times(costs), reached[0], times(read), reached[1]

    return _by_setting(
        "Ideal and measured speedup", part, selection.settings(part), heads, figures, baseline=False
    )


def resources(part: Results) -> Table | None:
    """Latency, memory and energy."""
    first, later = "first token, ms", "each further token, ms"
    heads = [
        Head("median", first),
        Head("99 %", first),
        Head("median", later),
        Head("99 %", later),
        Head("peak memory, MiB"),
        Head("keys and values, MiB"),
        Head("joules a token"),
        Head("prompts"),
        Head("failed"),
    ]

    def figures(run: Run) -> Iterable[str]:
        if not run["prompts"] and not run["failed"]:
            return [NONE] * len(heads)
        return [
            *(number(run["latency_ms"].get(key), ".1f") for key in LATENCIES),
            number(run["peak_memory_mib"], ",.0f"),
            number(run.get("kv_cache_mib"), ",.1f"),
            number(run["energy_j_per_token"], ".3g"),
            str(run["prompts"]),
            str(run["failed"]) if run["failed"] else NONE,
        ]

    return _by_setting("Latency, memory, energy", part, selection.settings(part), heads, figures)


SCORES = {"accuracy": "accuracy", "bleu": "BLEU", "rouge_l": "ROUGE-L"}


def quality(part: Results) -> Table | None:
    """The quality of approximate methods' texts and of plain decoding's, with the speedup."""
    names = [n for n in SCORES if any(n in run["scores"] for run in part["runs"])]
    heads = [
        Head("speedup"),
        *(Head(SCORES[name], "against the reference", short=SCORES[name]) for name in names),
        Head("log-likelihood a token", short="likelihood\na token"),
        Head("strayed tokens", short="strayed\ntokens"),
    ]

    def figures(run: Run) -> Iterable[Cell | str]:
        measures = [
            *(_score(name, run["scores"].get(name)) for name in names),
            number(run["log_likelihood_per_token"], ".3f").replace("-", "−"),
            wording.small_percent(run["stray_rate"]),
        ]
        shown = run["method"] == BASELINE or selection.approximate(run)
        if not shown or all(text == NONE for text in measures):
            return [NONE] * len(heads)
        return [_speedup(run), *measures]

    note = (
        "Plain decoding and the approximate methods (≈); a lossless method's text is worth what "
        "plain decoding's is. Log-likelihood: of the text under the target at temperature 1, in "
        "nats. Strayed: tokens that the lossless rule would have refused."
    )
    return _by_setting(
        "What the text is worth", part, selection.smallest_batch(part), heads, figures, note
    )


def _score(name: str, value: float | None) -> str:
    return wording.small_percent(value) if name != "bleu" else number(value, ".1f")


def sweep(part: Results) -> Table | None:
    """Speedup at every batch size, and from which on speculation no longer pays."""
    sizes = sorted({run["batch_size"] for run in part["runs"]})
    ends = {(c["method"], c["temperature"]): c for c in part.get("crossover", [])}
    if len(sizes) < 2 and not ends:
        return None
    heads = [*(Head(str(size), "batch size") for size in sizes), Head("pays below", "batch size")]
    groups = []
    for temperature in sorted({run["temperature"] for run in part["runs"]}):
        body = []
        for name, label in wording.labels([part]).items():
            if name == BASELINE:
                continue
            runs = {
                run["batch_size"]: run
                for run in part["runs"]
                if (run["method"], run["temperature"]) == (name, temperature)
            }
            cells = [_speedup(runs[size]) if size in runs else Cell(NONE) for size in sizes]
            end = _end(ends.get((name, temperature)), runs)
            body.append(Row(label, (*cells, Cell(end)), name))
        groups.append(Group(f"temperature {temperature:g}", (f"{temperature:g}",), tuple(body)))
    note = (
        "Pays below: the batch size at which the speedup falls to 1. Between measured sizes the "
        "speedup is interpolated linearly; where one size was measured, others are predicted from "
        "what passes cost."
    )
    return filled(
        Table("Speedup by batch size", "method", ("T",), tuple(heads), tuple(groups), note)
    )


def _end(crossover: Crossover | None, runs: Mapping[int, Run]) -> str:
    if crossover is None or not runs:
        return NONE
    if (runs[min(runs)]["speedup"] or 0.0) < 1:
        return "never"
    end = crossover["batch_size"]
    text = f"over {crossover['up_to']}" if end is None else f"{end:.3g}"
    return f"{text}, predicted" if crossover["predicted"] else text


def spec_bench(part: Results) -> Table | None:
    """Spec-Bench's columns, by its definitions."""
    names = selection.tasks(part)
    heads = [
        *(Head(task, "speedup") for task in names),
        Head("overall", "speedup"),
        Head("#mean accepted tokens"),
        Head("tokens/s"),
    ]

    def figures(run: Run) -> Iterable[str]:
        numbers, tasks = run["spec_bench"], run["by_task"]
        return [
            *(times(tasks[t]["spec_bench"]["speedup"]) if t in tasks else NONE for t in names),
            times(numbers["speedup"]),
            number(numbers["mean_accepted_tokens"]),
            number(numbers["tokens_per_second"]),
        ]

    note = (
        "Spec-Bench's definitions, for comparison with its tables: prefill counts as decoding, "
        "and tokens a second are averaged over questions before the ratio is taken. As in its "
        "scripts, questions whose answer loops count too."
    )
    title = "By Spec-Bench's own definitions"
    return _by_setting(title, part, selection.smallest_batch(part), heads, figures, note)


def all_tables(part: Results) -> list[Table]:
    """All tables of one measurement, in the order of the report."""
    makers = (
        numbers,
        tuned,
        by_task,
        positions,
        chosen,
        ideal,
        sweep,
        resources,
        quality,
        spec_bench,
    )
    made = [make(part) for make in makers]
    return [table for table in made if table is not None]
