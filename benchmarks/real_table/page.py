"""The README's table of real models, made from the cells of the record."""

from __future__ import annotations

import json
from collections.abc import Sequence

from page_markdown import NONE, code, markdown, tokens_a_second

from foretoken.bench.record import BASELINE
from real_table import beside
from real_table.cells import COLD, OF_TRAINED, STORED
from real_table.words import (
    Record,
    asked,
    machine,
    named,
    over,
    paragraphs,
    rounds,
    sentence,
    stalled,
    title,
    where,
    without_loops,
)

FASTEST = 5
"""How many of our methods the README shows for a target."""
_STAGES = ("grid", "screen")
"""Where a target's methods stand beside each other, the latest first."""


def best(record: Record) -> str:
    """One sequence at a time: of each target our fastest methods and `auto`, and each other
    engine's fastest method and plain decoding; from the grid, or before that from the screen."""
    cells = [cell for cell in record["cells"] if cell["stage"] != OF_TRAINED]
    intro = (
        "One sequence at a time; in brackets 95 % intervals. Each engine multiplies the weights in "
        "the format of their file, if it can. Speeds are of [decoding, timed from "
        "outside](docs/metrics.md#real-models) in the same way for every engine: the time in which "
        "a draft model reads the prompt counts, and in the column of whole calls so does the "
        f"target's. {_whose(cells)} "
        "([record](benchmarks/results/real.json))."
    )
    shown = (cell["target"] for cell in cells if cell["stage"] in _STAGES)
    return paragraphs(intro, *(_best(cells, target) for target in dict.fromkeys(shown)))


def _whose(cells: Sequence[Record]) -> str:
    if beside.of_cells(cells):
        return (
            "The table has our fastest methods and, of each other engine, the fastest method in "
            "its fastest precision, and its plain decoding where that was measured beside it"
        )
    return (
        "The table has our fastest methods; other engines have not been measured on these files yet"
    )


def _best(cells: Sequence[Record], target: str) -> str:
    greedy, sampled = (_alone(cells, target, temperature) for temperature in (0, 1))
    own = max(greedy, key=lambda cell: len(cell["rows"]))
    drawn = {name: row for cell in sampled for name, row in beside.from_outside(cell).items()}
    seen, shown = beside.from_outside(own), _shown(own["rows"])
    shown.sort(key=lambda row: -_ratio(seen[row["method"]]["decoding"]["over_own_plain"]))
    rows = [_ours(row, seen[row["method"]], drawn.get(row["method"])) for row in shown]
    others, theirs_drawn = (
        beside.fastest_precisions(beside.of_cells(greedy)),
        beside.of_cells(sampled),
    )
    theirs = [row for of_engine in others.values() for row in beside.fastest(of_engine)]
    rows += [_theirs(row, theirs_drawn.get(row["engine"], ())) for row in theirs]
    head = ["engine", "method", "tokens a pass", "tokens/s", "over its plain", "whole calls"]
    return paragraphs(
        f"**{title(target)}** ({asked(own)}; {where(own)})",
        markdown([*head, "at temperature 1"], rows, 2),
        _at_temperature_1(own, sampled, [row["method"] for row in shown]),
        beside.elsewhere(own, greedy, others),
        f"{beside.fewer_rounds(own, theirs)} {beside.over_ours(theirs)}".strip(),
        beside.on_other_machines(own, _screened(cells, target), theirs),
        beside.defaults(theirs),
        sentence(stalled(own)),
        _looping(own, shown),
        _whole_file(cells, target),
        _options(shown),
    )


def _screened(cells: Sequence[Record], target: str) -> list[Record]:
    return [cell for cell in cells if (cell["stage"], cell["target"]) == ("screen", target)]


def _at_temperature_1(own: Record, sampled: Sequence[Record], shown: Sequence[str]) -> str:
    """How the last column's rounds differ from the table's: in number, in machine, by rows."""
    if not sampled:
        return ""
    cell = max(sampled, key=lambda cell: len(cell["rows"]))
    seen = beside.from_outside(cell)
    of_row = {name: seen[name]["rounds"] for name in shown if name in seen}
    few = [name for name, count in of_row.items() if count < cell["rounds"]]
    alike = (machine(cell), cell["rounds"]) == (machine(own), own["rounds"])
    said = [rounds(cell) + ("" if alike else f", on {where(cell)}")]
    if few:
        most = max(of_row[name] for name in few)
        said.append(f"{' and '.join(map(code, few))} only in {most} of them")
    said += filter(None, [stalled(cell)])
    return "" if alike and len(said) == 1 else f"The last column: {'; '.join(said)}."


def _looping(cell: Record, shown: Sequence[Record]) -> str:
    """How many answers loop, and what our speeds are without them."""
    if not cell["looping"]:
        return ""
    return (
        f"The answers to {len(cell['looping'])} of the {cell['prompts']} prompts "
        "[loop](docs/metrics.md#degenerate-text). Over the other prompts alone, by the engine's "
        "own clock, which leaves out the time in which a draft model reads the prompt, the speeds "
        f"over plain decoding are: {_without_loops(shown)}."
    )


def _without_loops(rows: Sequence[Record]) -> str:
    told = {code(row["method"]): without_loops(row) for row in rows}
    return ", ".join(f"{method} {ratio}" for method, ratio in told.items() if ratio != NONE)


def _whole_file(cells: Sequence[Record], target: str) -> str:
    """What our methods gain over all questions of the benchmark's file, once all are answered."""
    found = [
        c for c in cells if (c["stage"], c["target"], c["complete"]) == ("whole", target, True)
    ]
    return paragraphs(*map(_all_questions, found))


def _all_questions(cell: Record) -> str:
    rows = [row for row in cell["rows"] if row["method"] != BASELINE and row["over_plain"]]
    speeds = [f"{code(r['method'])} {over(r, r['method'], 'over_plain')}" for r in rows]
    loops = (
        f" The answers to {len(cell['looping'])} of them loop; over the others alone: "
        f"{_without_loops(rows)}."
    )
    return (
        f"Over all {cell['prompts']} questions of Spec-Bench ({cell['turns']} turns; "
        f"{where(cell)}), by the engine's own clock, over plain: {', '.join(speeds)}."
        f"{loops if cell['looping'] else ''} {sentence(stalled(cell))}"
    ).rstrip()


def _options(shown: Sequence[Record]) -> str:
    """The options of the fastest row, where its name is not all of them."""
    more = [row for row in shown if row["config"].keys() - {"method"}]
    if not more:
        return ""
    row = more[0]
    config = json.dumps({**row["config"], "model": "DRAFT"})
    others = "[the others](docs/real-models.md#the-rows)"
    return f"As `-sc`, {code(row['method'])} is `{config}`; {others}."


def _alone(cells: Sequence[Record], target: str, temperature: float) -> list[Record]:
    """The target's cells of one sequence as stored and cold, of the latest stage in which
    all prompts were answered; of one that has just begun only where there is no other."""
    asked = {"target": target, "batch_size": 1, "precision": STORED, "memory": COLD}
    found = [cell for cell in cells if all(cell[key] == value for key, value in asked.items())]
    found = [cell for cell in found if cell["complete"] or cell["rounds"] > 1] or found
    stages = [cell["stage"] for cell in found if cell["temperature"] == 0]
    stage = next((name for name in _STAGES if name in stages), "")
    return [c for c in found if c["stage"] == stage and c["temperature"] == temperature]


def _ratio(over_plain: Record | None) -> float:
    """Plain decoding has none over itself."""
    return over_plain["ratio"] if over_plain else 1.0


def _shown(rows: Sequence[Record]) -> list[Record]:
    """Plain decoding, `auto`, and the fastest of the others."""
    rated = [row for row in rows if row["over_plain"]]
    rated.sort(key=lambda row: -row["over_plain"]["ratio"])
    others = [row for row in rated if row["method"] not in (BASELINE, "auto")]
    return [row for row in rated if row in others[:FASTEST] or row not in others]


def _ours(row: Record, seen: Record, sampled: Record | None) -> list[str]:
    speed = tokens_a_second(seen["decoding"]["tokens_per_second"])
    ratios = _over_plain(row["method"], seen, sampled)
    return ["foretoken", named(row), f"{row['mean_acceptance_length']:.2f}", speed, *ratios]


def _over_plain(method: str, seen: Record, sampled: Record | None) -> list[str]:
    """Decoding and whole calls at temperature 0, and decoding at temperature 1."""
    parts = seen["decoding"], seen["whole"], sampled and sampled["decoding"]
    return [over(part, method, "over_own_plain") for part in parts]


def _theirs(row: Record, sampled: Sequence[Record]) -> list[str]:
    again = next((each for each in sampled if each["method"] == row["method"]), None)
    speed = tokens_a_second(row["decoding"]["tokens_per_second"])
    return [row["engine"], row["method"], NONE, speed, *_over_plain(row["method"], row, again)]
