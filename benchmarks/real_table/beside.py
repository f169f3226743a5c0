"""What the pages say of other engines' rows, which stand beside ours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lineup import LOOKUP
from page_markdown import NONE, markdown, ranged

from foretoken.bench.record import BASELINE
from real_table.cells import COLD
from real_table.lineup import PEERS, PLAIN
from real_table.words import (
    Record,
    asked,
    machine,
    name,
    named,
    over,
    paragraphs,
    speed,
    speeds,
    stalled,
    together,
    where,
)

ALIKE = 0.1
"""By how much our plain decoding's speed may differ between cells of the same conditions."""
OURS = "foretoken"


def of_cells(cells: Iterable[Record]) -> dict[str, list[Record]]:
    """The other engines' rows."""
    found: dict[str, list[Record]] = {}
    for row in (row for cell in cells for row in cell["peers"]):
        if row["engine"] != OURS and row["decoding"]["tokens_per_second"]:
            found.setdefault(row["engine"], []).append(row)
    return found


def fastest_precisions(peers: Mapping[str, list[Record]]) -> dict[str, list[Record]]:
    """Of an engine that was measured in several precisions the one with the fastest row."""
    speed_of = {
        name: max(row["decoding"]["tokens_per_second"] for row in rows)
        for name, rows in peers.items()
    }
    engines = {name: PEERS[name].engine for name in peers}
    fastest = {engines[name]: name for name in sorted(peers, key=speed_of.__getitem__)}
    return {name: rows for name, rows in peers.items() if fastest[engines[name]] == name}


def fastest(rows: Sequence[Record]) -> list[Record]:
    """An engine's plain decoding and its fastest method."""
    others = [row for row in rows if row["method"] != PLAIN]
    others.sort(key=lambda row: -row["decoding"]["tokens_per_second"])
    return [row for row in rows if row["method"] == PLAIN] + others[:1]


def from_outside(cell: Record) -> dict[str, Record]:
    """Our rows' "decoding", "whole" and "rounds" as other engines' have them; in a cell without
    others, where they weren't asked from outside, by our own clock."""
    seen = {row["method"]: row for row in cell["peers"] if row["engine"] == OURS}
    apart = [row for row in cell["rows"] if row["method"] not in seen]
    return seen | {row["method"]: _by_our_clock(row, cell) for row in apart}


def _by_our_clock(row: Record, cell: Record) -> Record:
    return {
        "decoding": {
            "tokens_per_second": row["tokens_per_second"],
            "over_own_plain": row["over_plain"],
        },
        "whole": {"over_own_plain": row["whole"]["over_plain"]},
        "rounds": row.get("rounds", cell["rounds"]),
    }


def elsewhere(own: Record, cells: Sequence[Record], shown: Collection[str]) -> str:
    """Which speeds of the engines that are shown are another machine's, or of minutes in which this
    one was faster or slower; and what ours was then."""
    found: dict[str, list[Record]] = {}
    for cell in cells:
        alike = abs(_plainly(cell) / _plainly(own) - 1) < ALIKE
        if not (alike and machine(cell) == machine(own)):
            found.setdefault(machine(cell), []).append(cell)
    said = []
    for there, apart in found.items():
        names = [name for name in of_cells(apart) if name in shown]
        ours = [_plainly(cell) for cell in apart if not {*names}.isdisjoint(of_cells([cell]))]
        if names:
            when = "at other times" if there == machine(own) else f"on {there}"
            said.append(
                f"{', '.join(names)}: {when}; in the same minutes our plain decoding wrote "
                f"{speeds(ours)} tokens/s."
            )
    return paragraphs(*said)


def _plainly(cell: Record) -> float:
    """Our plain decoding's tokens a second."""
    return next(r["tokens_per_second"] for r in cell["rows"] if r["method"] == BASELINE)


def fewer_rounds(own: Record, shown: Sequence[Record]) -> str:
    """In how many rounds other engines stood beside ours, where it wasn't in all; on what machine,
    and how fast ours was there."""
    most = max((row["rounds"] for row in shown), default=own["rounds"])
    if most == own["rounds"]:
        return ""
    there = f", on {machine(first)}" if (first := _first_rounds(own, most)) else ""
    return (
        f"Other engines stood beside ours in {most} of the {own['rounds']} rounds{there}, where "
        f"{_our_plain([own])}."
    )


def over_ours(shown: Sequence[Record]) -> str:
    """Their speeds over our plain decoding's in the same rounds, the fastest first."""
    ordered = sorted(shown, key=lambda row: -_ratio_to_ours(row["decoding"]))
    told = [f"{row['engine']}, {row['method']} {_beside(row['decoding'])}" for row in ordered]
    return f"Over our plain decoding: {'; '.join(told)}." if told else ""


def _first_rounds(own: Record, count: int) -> Record | None:
    """The machines of a cell's first rounds, where the record tells: a round is of one machine, and
    machines are in the order of rounds, each once."""
    machines = own["machines"]
    known = count == 1 or len(machines) in (1, own["rounds"])
    return {"machines": machines[:count]} if known else None


def on_other_machines(own: Record, screened: Sequence[Record], shown: Sequence[Record]) -> str:
    """How the rows that are shown compared with ours in the screen, where that was on a machine
    which their rounds in the table don't have."""
    most = max((row["rounds"] for row in shown), default=0)
    known = _processors(_first_rounds(own, most) or own)
    keys = {_key(row) for row in shown}
    apart = [
        cell
        for cell in screened
        if not _processors(cell) <= known and any(_key(row) in keys for row in cell["peers"])
    ]
    if not apart or own["stage"] == "screen":
        return ""
    rows = {_key(row): row for cell in apart for row in cell["peers"]}
    alike = [rows[_key(row)] for row in shown if _key(row) in rows]
    return (
        f"In the [screen](docs/other-engines.md#real-models) ({asked(apart[0])}), on "
        f"{where(together(apart))}, {_our_plain(apart)}. {over_ours(alike)}"
    )


def _processors(cell: Record) -> set[tuple[int, str]]:
    return {(each["cores"], each["cpu"]) for each in cell["machines"]}


def _key(row: Record) -> tuple[str, str]:
    return row["engine"], row["method"]


def _our_plain(cells: Iterable[Record]) -> str:
    """Our plain decoding's speed in the rounds that have every row."""
    plain = [from_outside(cell)[BASELINE]["decoding"] for cell in cells]
    return f"our plain decoding wrote {speeds(p['tokens_per_second'] for p in plain)} tokens/s"


def defaults(shown: Sequence[Record]) -> str:
    """Which kind of prompt lookup llama.cpp's rows are, where it is at its defaults."""
    kinds = [
        row["options"]["--spec-type"]
        for row in shown
        if row["engine"] == "llama.cpp" and row["kind"] == LOOKUP and len(row["options"]) == 1
    ]
    said = [f"llama.cpp's prompt lookup is at its defaults for `--spec-type {k}`" for k in kinds]
    kept = ", and keeps its n-grams from prompt to prompt, while our rows begin each one with none"
    return paragraphs(
        *(f"{t}{kept * (k == 'ngram-mod')}." for t, k in zip(said, kinds, strict=True))
    )


def everywhere(record: Record) -> str:
    """All rows of other engines, by target, beside ours in the same cells."""
    groups: dict[tuple[str, str, float], list[Record]] = {}
    for cell in record["cells"]:
        if of_cells([cell]) and cell["memory"] == COLD and cell["complete"]:
            key = cell["target"], cell["stage"], cell["temperature"]
            groups.setdefault(key, []).append(cell)
    order = sorted(groups, key=lambda key: (list(groups).index(key), key[2]))
    targets = list(dict.fromkeys(target for target, _, _ in order))
    order.sort(key=lambda key: targets.index(key[0]))
    return paragraphs(*(_group(groups[key]) for key in order))


def _group(cells: Sequence[Record]) -> str:
    first, peers = cells[0], of_cells(cells)
    which = "every row" if first["stage"] == "screen" else "the fastest rows"
    heading = (
        f"**{name(first['target'])}, {which}, temperature {first['temperature']:g}** "
        f"({asked(first)}; {where(together(cells))})"
    )
    theirs = [row for engine in PEERS for row in peers.get(engine, ())]
    lines = [*_ours(cells), *map(_theirs, theirs)]
    head = ["engine", "method", "tokens/s", "over its plain", "over our plain"]
    table = markdown([*head, "whole calls over ours"], lines, 2)
    rounds = "" if len(cells) > 1 else fewer_rounds(first, theirs)
    return paragraphs(heading, table, rounds, *map(_left_out, cells))


def _left_out(cell: Record) -> str:
    """Of the rounds in which other engines stood beside ours."""
    of = cell.get("speed_rounds", range(1, cell["rounds"] + 1))
    shared = [one for one in cell.get("stalled", ()) if one["round"] in of]
    said = stalled({**cell, "stalled": shared, "rounds": len(of)})
    return f"Beside {', '.join(of_cells([cell]))}: {said}." if said else ""


def _ours(cells: Sequence[Record]) -> list[list[str]]:
    """Our plain decoding, `auto` and our fastest other method; of cells that differ in nothing but
    the engine beside us from the lowest to the highest."""
    seen = [from_outside(cell) for cell in cells]
    rate = {m: r["decoding"]["tokens_per_second"] for rows in seen for m, r in rows.items()}
    order = sorted(rate, key=lambda method: -rate[method])
    best = [method for method in order if method not in (BASELINE, "auto")][:1]
    methods = [method for method in order if method in (BASELINE, "auto", *best)]
    return [_our(method, [rows[method] for rows in seen if method in rows]) for method in methods]


def _our(method: str, rows: Sequence[Record]) -> list[str]:
    rate = speeds(row["decoding"]["tokens_per_second"] for row in rows)
    decoding, whole = (_span([row[part] for row in rows], method) for part in ("decoding", "whole"))
    return [OURS, named({"method": method}), rate, decoding, decoding, whole]


def _span(parts: Sequence[Record], method: str) -> str:
    if len(parts) == 1 or method == BASELINE:
        return over(parts[0], method, "over_own_plain")
    ratios = sorted(part["over_own_plain"]["ratio"] for part in parts)
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}"


def _theirs(row: Record) -> list[str]:
    decoding, whole = row["decoding"], row["whole"]
    ours = [_beside(part) for part in (decoding, whole)]
    own = over(decoding, row["method"], "over_own_plain")
    return [*_key(row), speed(decoding["tokens_per_second"]), own, *ours]


def _ratio_to_ours(part: Record) -> float:
    found = part["over_foretoken_plain"]
    return float(found["ratio"]) if found else 0.0


def _beside(part: Record) -> str:
    """Over our plain decoding, which their plain decoding has too."""
    found = part["over_foretoken_plain"]
    return ranged(found["ratio"], found["ci95"]) if found else NONE
