"""The pages' tables of the screen, of the weights' precision and of trained drafters."""

from __future__ import annotations

from collections.abc import Sequence

from page_markdown import NONE, code, markdown

from real_table.cells import OF_TRAINED
from real_table.lineup import DRAFTERS, TRAINED
from real_table.words import (
    LOOPS,
    Record,
    all_of,
    name,
    named,
    over,
    paragraphs,
    speed,
    title,
    told,
    two,
    without_loops,
)

NOT_MEASURED = "*Drafters trained for SmolLM2 have not been measured on it yet.*"


def screen(record: Record) -> str:
    """Every method of the screen on each target: tokens a pass, and speed over plain decoding."""
    cells = [c for c in record["cells"] if c["stage"] == "screen" and not c["peers"]]
    methods = dict.fromkeys(row["method"] for cell in cells for row in cell["rows"])
    lines = [[code(m), *(text for cell in cells for text in _screened(cell, m))] for m in methods]
    head = [""]
    for cell in cells:
        loops = ["without loops"] if cell["looping"] else []
        head += [f"{name(cell['target'])}: tokens a pass", "over plain", *loops]
    below = [told((title(cell["target"]), cell) for cell in cells)]
    below += [LOOPS] if any(cell["looping"] for cell in cells) else []
    return paragraphs(markdown(head, lines), " ".join(text for text in below if text))


def _screened(cell: Record, method: str) -> list[str]:
    row = next((row for row in cell["rows"] if row["method"] == method), None)
    loops = bool(cell["looping"])
    if row is None or row["mean_acceptance_length"] is None:
        return [NONE] * (2 + loops)
    of_others = [without_loops(row)] if loops else []
    return [f"{row['mean_acceptance_length']:.2f}", over(row, method, "over_plain"), *of_others]


def precisions(record: Record) -> str:
    """Rows of one sequence at temperature 0 by the precision of the target's weights; cells in
    which all prompts were answered."""
    cells = [cell for cell in record["cells"] if cell["stage"] == "precision" and cell["complete"]]
    lines = [
        [
            name(cell["target"]),
            cell["precision"],
            *(named(row), *_at_a_temperature(row)),
            over(row["whole"], row["method"], "over_plain"),
        ]
        for cell in cells
        for row in cell["rows"]
    ]
    below = [told((_weights(cell), cell) for cell in cells), LOOPS]
    table = markdown(["target", "weights", *_HEAD, "whole calls"], lines, 3)
    return paragraphs(table, " ".join(text for text in below if text))


def _weights(cell: Record) -> str:
    precision = cell["precision"]
    return f"{name(cell['target'])} {'in ' * precision.startswith('float')}{precision}"


_HEAD = ["", "tokens a pass", "tokens/s", "over plain", "without loops", "ideal"]


def _at_a_temperature(row: Record) -> list[str]:
    """The cells below `_HEAD` but the first."""
    return [
        two(row["mean_acceptance_length"]),
        speed(row["tokens_per_second"]),
        over(row, row["method"], "over_plain"),
        without_loops(row),
        two(row["ideal"]),
    ]


def trained(record: Record) -> str:
    """Drafters trained for SmolLM2 beside plain decoding and the best methods without training, at
    both temperatures, the fastest first; and what training estimated."""
    cells = sorted(
        (c for c in record["cells"] if c["stage"] == OF_TRAINED), key=lambda c: c["temperature"]
    )
    if not cells:
        return NOT_MEASURED
    intro = (
        f"{title(cells[0]['target'])}; Spec-Bench questions, one sequence at a time; in brackets "
        "95 % intervals. The ideal is the speed over plain decoding that the tokens a pass allow "
        f"at the measured costs of passes and drafts. {LOOPS} "
        "([record](../benchmarks/results/real.json))"
    )
    return paragraphs(intro, *map(_trained, cells), _cards(record["trained"]))


def _trained(cell: Record) -> str:
    begun = "" if cell["complete"] else " The measurement is not complete."
    heading = f"**Temperature {cell['temperature']:g}** ({all_of(cell)}){begun}"
    rows: Sequence[Record] = sorted(
        cell["rows"], key=lambda row: -(row["tokens_per_second"] or 0.0)
    )
    lines = [[named(row), *_at_a_temperature(row)] for row in rows]
    return paragraphs(heading, markdown(_HEAD, lines), _not_judged(cell))


def _not_judged(cell: Record) -> str:
    """Why rows have no ideal."""
    why = [
        f"a pass timed by itself took {one['timed_ms']:.2f} ms in round {one['round']}, where "
        f"plain decoding's took {one['plain_ms']:.2f}"
        for one in cell.get("not_judged", ())
    ]
    return f"There are [no ideals](metrics.md#real-models): {'; '.join(why)}." if why else ""


def _cards(about: Record) -> str:
    """Each drafter's size, and what training estimated and served of the answers it held out."""
    methods = {row["model"]: row["method"] for row in reversed(TRAINED.values())}
    lines = [
        [f"`{name}`", code(methods[name]), f"{own['bytes'] / 1e6:.0f}"]
        + [two(own[part]) for part in ("estimated", "served")]
        for name in DRAFTERS
        if (own := about["drafters"].get(name)) is not None
    ]
    lacking = f"Not there: {', '.join(about['missing'])}." if about["missing"] else ""
    head = ["drafter", "method", "MB", "held out: estimated", "served"]
    return paragraphs(markdown(head, lines, 2) if lines else "", lacking)
