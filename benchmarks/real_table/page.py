"""The pages' tables of real models, made from the cells of the record."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from page_markdown import NONE, code, markdown, ranged, tokens_a_second

from foretoken.bench.record import BASELINE
from real_table.cells import COLD, OF_TRAINED, STORED
from real_table.lineup import DRAFTERS, PEERS, PLAIN, TRAINED

Record = Mapping[str, Any]
FASTEST = 5
"""How many of our methods the README shows for a target."""
ALIKE = 0.1
"""By how much our plain decoding's speed may differ between cells of the same conditions."""
_STAGES = ("grid", "screen")
"""Where a target's methods stand beside each other, the latest first."""
TITLES = {
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct, Q4_K; draft model its 0.5B, Q4_K, which "
    "foretoken runs in blocks of 4 bits",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct, Q4_K",
    "smollm2-135m": "SmolLM2-135M-Instruct, Q4_1",
}


NOT_MEASURED = "*Drafters trained for SmolLM2 have not been measured on it yet.*"


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
    targets = dict.fromkeys(shown)
    return "\n\n".join([intro, *(_best(cells, target) for target in targets)])


def _whose(cells: Sequence[Record]) -> str:
    if _peers(cells):
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
    at_1 = {name: row for cell in sampled for name, row in from_outside(cell).items()}
    seen, shown = from_outside(own), _shown(own["rows"])
    shown.sort(key=lambda row: -_ratio(seen[row["method"]]["decoding"]["over_own_plain"]))
    rows = [_ours(row, seen[row["method"]], at_1.get(row["method"])) for row in shown]
    others = fastest_precisions(_peers(greedy))
    drawn = _peers(sampled)
    for engine, of_engine in others.items():
        rows += [_theirs(row, drawn.get(engine, ())) for row in _fastest(of_engine)]
    most = f"{own['max_tokens']} tokens at most"
    rounds = f", {own['rounds']} rounds" if own["rounds"] > 1 else ""
    where = f"{_machine(own)}, {own['dates'][-1][:10]}"
    title = f"**{TITLES.get(target, target)}** ({own['prompts']} prompts, {most}{rounds}; {where})"
    head = ["engine", "method", "tokens a pass", "tokens/s", "over its plain", "whole calls"]
    table = markdown([*head, "at temperature 1"], rows, 2)
    below = [elsewhere(own, greedy, others), fewer_rounds(own, others), _looping(own, shown)]
    below += [_whole_file(cells, target), _options(shown)]
    return f"{title}\n\n{table}{''.join(below)}"


def from_outside(cell: Record) -> dict[str, Record]:
    """Our rows' "decoding" and "whole" as other engines' have them; in a cell without others, where
    they weren't asked from outside, by our own clock."""
    seen = {row["method"]: row for row in cell["peers"] if row["engine"] == "foretoken"}
    return {row["method"]: seen.get(row["method"], _by_our_clock(row)) for row in cell["rows"]}


def _by_our_clock(row: Record) -> Record:
    return {
        "decoding": {
            "tokens_per_second": row["tokens_per_second"],
            "over_own_plain": row["over_plain"],
        },
        "whole": {"over_own_plain": row["whole"]["over_plain"]},
    }


def _looping(cell: Record, shown: Sequence[Record]) -> str:
    """How many answers loop, and what our speeds are without them."""
    if not cell["looping"]:
        return ""
    without = [
        f"{code(row['method'])} {row['without_looping']['ratio']:.2f}"
        for row in shown
        if row["method"] != BASELINE and row["without_looping"]
    ]
    return (
        f"\n\nThe answers to {len(cell['looping'])} of the {cell['prompts']} prompts "
        "[loop](docs/metrics.md#degenerate-text). Over the other prompts alone, by the engine's "
        "own clock, which leaves out the time in which a draft model reads the prompt, the speeds "
        f"over plain decoding are: {', '.join(without)}."
    )


def _whole_file(cells: Sequence[Record], target: str) -> str:
    """What our methods gain over all questions of the benchmark's file, once all are answered."""
    found = [
        c for c in cells if (c["stage"], c["target"], c["complete"]) == ("whole", target, True)
    ]
    said = ""
    for cell in found:
        rows = [row for row in cell["rows"] if row["method"] != BASELINE and row["over_plain"]]
        speeds = [f"{code(r['method'])} {_over(r, r['method'], 'over_plain')}" for r in rows]
        said += (
            f"\n\nOver all {cell['prompts']} questions of Spec-Bench ({cell['turns']} turns; "
            f"{_machine(cell)}, {cell['dates'][-1][:10]}), by the same clock, over plain: "
            f"{', '.join(speeds)}."
        )
    return said


def _options(shown: Sequence[Record]) -> str:
    """The options of rows whose names don't tell them."""
    named = [row for row in shown if "num_assistant_tokens_schedule" in row["config"]]
    told = [
        f"`{row['method']}` is `{json.dumps({**row['config'], 'model': 'DRAFT'})}`" for row in named
    ]
    return f"\n\nAs `-sc`: {'; '.join(told)}." if told else ""


def _machine(cell: Record) -> str:
    """Where a cell was measured."""
    return " and ".join(f"{each['cores']} cores of {each['cpu']}" for each in cell["machines"])


def elsewhere(own: Record, cells: Sequence[Record], shown: Collection[str]) -> str:
    """Which speeds of the engines that are shown are another machine's, or of minutes in which this
    one was faster or slower; and what ours was then."""
    found: dict[str, list[Record]] = {}
    for cell in cells:
        alike = abs(_plainly(cell) / _plainly(own) - 1) < ALIKE
        if not (alike and _machine(cell) == _machine(own)):
            found.setdefault(_machine(cell), []).append(cell)
    said = ""
    for machine, apart in found.items():
        names = [name for name in _peers(apart) if name in shown]
        ours = sorted(_plainly(cell) for cell in apart if not {*names}.isdisjoint(_peers([cell])))
        if names:
            speeds = " to ".join(dict.fromkeys(map(tokens_a_second, (ours[0], ours[-1]))))
            where = "at other times" if machine == _machine(own) else f"on {machine}"
            said += (
                f"\n\n{', '.join(names)}: {where}; in the same minutes our plain decoding wrote "
                f"{speeds} tokens/s."
            )
    return said


def fewer_rounds(own: Record, others: Mapping[str, list[Record]]) -> str:
    """In how many rounds other engines stood beside ours, where it wasn't in all."""
    most = max((row["rounds"] for rows in others.values() for row in rows), default=own["rounds"])
    if most == own["rounds"]:
        return ""
    return f"\n\nOther engines stood beside ours in {most} of the {own['rounds']} rounds."


def _plainly(cell: Record) -> float:
    """Our plain decoding's tokens a second."""
    return next(r["tokens_per_second"] for r in cell["rows"] if r["method"] == BASELINE)


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
    name = "plain" if row["method"] == BASELINE else code(row["method"])
    speed = tokens_a_second(seen["decoding"]["tokens_per_second"])
    over = _over_plain(row["method"], seen, sampled)
    return ["foretoken", name, f"{row['mean_acceptance_length']:.2f}", speed, *over]


def _over_plain(method: str, seen: Record, sampled: Record | None) -> list[str]:
    """Decoding and whole calls at temperature 0, and decoding at temperature 1."""
    parts = seen["decoding"], seen["whole"], sampled and sampled["decoding"]
    return [_over(part, method, "over_own_plain") for part in parts]


def _peers(cells: Sequence[Record]) -> dict[str, list[Record]]:
    """The other engines' rows."""
    found: dict[str, list[Record]] = {}
    for row in (row for cell in cells for row in cell["peers"]):
        if row["engine"] != "foretoken" and row["decoding"]["tokens_per_second"]:
            found.setdefault(row["engine"], []).append(row)
    return found


def fastest_precisions(peers: Mapping[str, list[Record]]) -> dict[str, list[Record]]:
    """Of an engine that was measured in several precisions the one with the fastest row."""
    speed = {
        name: max(row["decoding"]["tokens_per_second"] for row in rows)
        for name, rows in peers.items()
    }
    engines = {name: PEERS[name].engine for name in peers}
    fastest = {engines[name]: name for name in sorted(peers, key=speed.__getitem__)}
    return {name: rows for name, rows in peers.items() if fastest[engines[name]] == name}


def _fastest(rows: Sequence[Record]) -> list[Record]:
    """An engine's plain decoding and its fastest method."""
    others = [row for row in rows if row["method"] != PLAIN]
    others.sort(key=lambda row: -row["decoding"]["tokens_per_second"])
    return [row for row in rows if row["method"] == PLAIN] + others[:1]


def _theirs(row: Record, sampled: Sequence[Record]) -> list[str]:
    again = next((each for each in sampled if each["method"] == row["method"]), None)
    speed = tokens_a_second(row["decoding"]["tokens_per_second"])
    return [row["engine"], row["method"], NONE, speed, *_over_plain(row["method"], row, again)]


def _over(row: Record | None, method: str, key: str) -> str:
    """A speed over plain decoding; of plain decoding, and of no row, a dash."""
    if row is None or method in (BASELINE, PLAIN) or row[key] is None:
        return NONE
    return ranged(row[key]["ratio"], row[key]["ci95"])


def screen(record: Record) -> str:
    """Every method of the screen on each target: tokens a pass, and speed over plain decoding."""
    cells = {
        cell["target"]: {row["method"]: row for row in cell["rows"]}
        for cell in record["cells"]
        if cell["stage"] == "screen" and not cell["peers"]
    }
    methods = dict.fromkeys(method for rows in cells.values() for method in rows)
    lines = [
        [code(m), *(c for rows in cells.values() for c in _screened(rows.get(m)))] for m in methods
    ]
    head = [""]
    for target in cells:
        head += [f"{TITLES.get(target, target).split(',')[0]}: tokens a pass", "over plain"]
    return markdown(head, lines)


def _screened(row: Record | None) -> tuple[str, str]:
    if row is None or row["mean_acceptance_length"] is None:
        return NONE, NONE
    return f"{row['mean_acceptance_length']:.2f}", _over(row, row["method"], "over_plain")


def precisions(record: Record) -> str:
    """Rows of one sequence at temperature 0 by the precision of the target's weights; cells in
    which all prompts were answered."""
    cells = [cell for cell in record["cells"] if cell["stage"] == "precision" and cell["complete"]]
    lines = [
        [
            _name(cell),
            cell["precision"],
            _named(row),
            *_at_0(row),
            _over(row["whole"], row["method"], "over_plain"),
        ]
        for cell in cells
        for row in cell["rows"]
    ]
    head = ["target", "weights", "", "tokens a pass", "tokens/s", "over plain", "ideal"]
    asked = dict.fromkeys(
        f"{_name(cell)} in {cell['precision']}: {cell['prompts']} prompts, at most "
        f"{cell['max_tokens']} tokens, on {_machine(cell)}, {cell['dates'][-1][:10]}."
        for cell in cells
    )
    return "\n\n".join([markdown([*head, "whole calls"], lines, 3), " ".join(asked)])


def _name(cell: Record) -> str:
    return TITLES.get(cell["target"], cell["target"]).partition(",")[0]


def trained(record: Record) -> str:
    """Drafters trained for SmolLM2 beside plain decoding and the best methods without training, at
    both temperatures, the fastest at temperature 0 first; and what training estimated."""
    cells = {c["temperature"]: c for c in record["cells"] if c["stage"] == OF_TRAINED}
    greedy, sampled = cells.get(0.0), cells.get(1.0)
    if greedy is None:
        return NOT_MEASURED
    at_1 = {row["method"]: row for row in sampled["rows"]} if sampled else {}
    rows = sorted(greedy["rows"], key=lambda row: -(row["tokens_per_second"] or 0.0))
    head = ["", *("tokens a pass", "tokens/s", "over plain", "ideal")]
    head += [f"at temperature 1: {name}" for name in ("tokens a pass", "over plain", "ideal")]
    lines = [[_named(r), *_at_0(r), *_at_1(at_1.get(r["method"]))] for r in rows]
    parts = [_asked(greedy, sampled), markdown(head, lines), _cards(record["trained"])]
    return "\n\n".join(part for part in parts if part)


def _asked(greedy: Record, sampled: Record | None) -> str:
    drawn = f"; {sampled['prompts']} of them at temperature 1" if sampled else ""
    begun = "" if greedy["complete"] else " The measurement is not complete."
    return (
        f"{TITLES[greedy['target']]}; {greedy['prompts']} Spec-Bench questions{drawn}, at most "
        f"{greedy['max_tokens']} tokens, one sequence at a time, on {_machine(greedy)}, "
        f"{greedy['dates'][-1][:10]}; in brackets 95 % intervals. The ideal is the speed over "
        "plain decoding that the tokens a pass allow at the measured costs of passes and drafts "
        f"([record](../benchmarks/results/real.json)).{begun}"
    )


def _named(row: Record) -> str:
    return "plain" if row["method"] == BASELINE else code(row["method"])


def _at_0(row: Record) -> list[str]:
    speed = row["tokens_per_second"]
    return [
        _two(row["mean_acceptance_length"]),
        NONE if speed is None else tokens_a_second(speed),
        _over(row, row["method"], "over_plain"),
        _two(row["ideal"]),
    ]


def _at_1(row: Record | None) -> list[str]:
    if row is None:
        return [NONE] * 3
    length, _, *others = _at_0(row)
    return [length, *others]


def _two(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _cards(about: Record) -> str:
    """Each drafter's size, and what training estimated and served of the answers it held out."""
    methods = {row["model"]: row["method"] for row in reversed(TRAINED.values())}
    lines = [
        [f"`{name}`", code(methods[name]), f"{own['bytes'] / 1e6:.0f}"]
        + [_two(own[part]) for part in ("estimated", "served")]
        for name in DRAFTERS
        if (own := about["drafters"].get(name)) is not None
    ]
    lacking = f"\n\nNot there: {', '.join(about['missing'])}." if about["missing"] else ""
    head = ["drafter", "method", "MB", "held out: estimated", "served"]
    return (markdown(head, lines, 2) if lines else "") + lacking
