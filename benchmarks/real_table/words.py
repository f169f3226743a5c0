"""What the tables of real models say alike: names, machines and days, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from page_markdown import NONE, code, ranged, tokens_a_second

from foretoken.bench.record import BASELINE
from real_table.lineup import PLAIN

Record = Mapping[str, Any]
TITLES = {
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct, Q4_K; draft model its 0.5B, Q4_K, which "
    "foretoken runs with `--draft-backend q4`",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct, Q4_K",
    "smollm2-135m": "SmolLM2-135M-Instruct, Q4_1",
}


def title(target: str) -> str:
    """A target with its format, and how its draft model is run."""
    return TITLES.get(target, target)


def name(target: str) -> str:
    return title(target).partition(",")[0]


def machine(cell: Record) -> str:
    """Where a cell was measured; processors that differ and have one name are counted."""
    kinds = Counter((each["cores"], each["cpu"]) for each in cell["machines"])
    return " and ".join(
        f"{cores} cores of {cpu}" + (f" ({count} kinds)" if count > 1 else "")
        for (cores, cpu), count in kinds.items()
    )


def days(cell: Record) -> str:
    """The first day and the last one."""
    ends = min(cell["dates"])[:10], max(cell["dates"])[:10]
    return " to ".join(dict.fromkeys(ends))


def where(cell: Record) -> str:
    return f"{machine(cell)}, {days(cell)}"


def asked(cell: Record) -> str:
    several = f", {rounds(cell)}{_speed_rounds(cell)}" if cell["rounds"] > 1 else ""
    return f"{cell['prompts']} prompts, {cell['max_tokens']} tokens at most{several}"


def _speed_rounds(cell: Record) -> str:
    """Of which rounds tokens/s are, where some lack a row; ratios are of all that have theirs."""
    count = len(cell.get("speed_rounds", range(cell["rounds"])))
    have = "1 that has" if count == 1 else f"{count} that have"
    return f", tokens/s of the {have} every row" if count < cell["rounds"] else ""


def rounds(cell: Record) -> str:
    return "1 round" if cell["rounds"] == 1 else f"{cell['rounds']} rounds"


def together(cells: Sequence[Record]) -> Record:
    """Cells that were asked the same, as one: where and when they were measured."""
    machines = [each for cell in cells for each in cell["machines"]]
    kinds = [each for at, each in enumerate(machines) if each not in machines[:at]]
    dates = [date for cell in cells for date in cell["dates"]]
    return {**cells[0], "machines": kinds, "dates": dates}


def told(cells: Iterable[tuple[str, Record]], of: str = "") -> str:
    """What was asked of cells, and where, in one sentence for those of which it is the same. of:
    what stands before their labels."""
    found: dict[str, list[str]] = {}
    for label, cell in cells:
        found.setdefault(all_of(cell), []).append(label)
    return " ".join(f"{of}{', '.join(labels)}: {said}." for said, labels in found.items())


def all_of(cell: Record) -> str:
    """What was asked of a cell, what is to be known of the answers, and where it was measured."""
    count = len(cell["looping"])
    loops = f"the answers to {count} loop" if count else ""
    return "; ".join(filter(None, [asked(cell), loops, stalled(cell), where(cell)]))


def stalled(cell: Record) -> str:
    """How many answers count for no row's speed, as the machine stood still in one."""
    count, of = len(cell.get("stalled", ())), cell["turns"] * cell["rounds"]
    what = f"{of} answers" if cell["batch_size"] == 1 else "the batches' turns"
    said = f"left out of every method's speed, as the machine stood still: {count} of {what}"
    return said if count else ""


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


LOOPS = "*Without loops* is over the prompts alone whose plain answers don't loop."


def without_loops(row: Record) -> str:
    """A row's speed over plain decoding where no answer loops; of plain decoding a dash."""
    found = row["without_looping"]
    return NONE if found is None or row["method"] == BASELINE else f"{found['ratio']:.2f}"


def paragraphs(*parts: str) -> str:
    """Those that say something."""
    return "\n\n".join(part for part in parts if part)


def named(row: Record) -> str:
    return "plain" if row["method"] == BASELINE else code(row["method"])


def over(row: Record | None, method: str, key: str) -> str:
    """A speed over plain decoding; of plain decoding, and of no row, a dash."""
    if row is None or method in (BASELINE, PLAIN) or row[key] is None:
        return NONE
    return ranged(row[key]["ratio"], row[key]["ci95"])


def two(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def speed(value: float | None) -> str:
    return NONE if value is None else tokens_a_second(value)


def speeds(values: Iterable[float]) -> str:
    """The lowest and the highest of tokens a second."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(map(tokens_a_second, (ordered[0], ordered[-1]))))
