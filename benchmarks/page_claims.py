"""Which numbers of a page say how fast, how long or how often something was.

A number is taken for a measurement by its unit or form; a version, a section of a paper, the size
of a model, a default in a table of options or anything in code is none. See pages.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

NUMBER = re.compile(r"(?<![\w.,])(?<![A-Za-z]-)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w,]*\w)")

_HIDDEN = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+|\d+ ?[×x] ?\d+"  # code, links, marks, shapes
    r"|\b(?:sections?|theorem|torch|Python|Apache|CC BY(?:-SA)?)[ -][\d.]+\d(?: and [\d.]+\d)?",
    re.DOTALL,
)
_UNIT = (
    r"(?:%|ms\b|µs\b|times\b|tokens/s|tokens a (?:second|pass|step)\b|[GT]B/s|[GT]FLOP/s"
    r"|s\b|seconds\b|minutes\b|hours\b)|×(?! ?\d)"
)
_NUMBERS = r"\d[\d.,]*(?:[-–]\d[\d.,]*| (?:to|and|or) \d[\d.,]*)*"
_MEASURED = re.compile(rf"(?<![\w.,])(?!95 ?%){_NUMBERS}\s?(?:{_UNIT})")
_WORDS = re.compile(
    r"\b(?:twice|(?:two|three|four|five|six|seven|eight|nine|ten) times)"
    r" (?:as (?:fast|slow|long)|faster|slower)"
)
_DECIMAL = re.compile(
    r"(?<![\w.,])(?<![A-Za-z]-)\d+\.\d+(?![\w.]*\w)(?! (?:million|billion|[KMG]B\b|M param))"
)
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
NOTED = re.compile(rf"\*[^*]*[Nn]oted in (?:{_MONTHS}) \d{{4}} on \w[^*]*\*")
SET = "<!-- not measured -->"
QUOTED = "## Training data and its licences"


@dataclass(frozen=True)
class Part:
    """A paragraph, table or item of a list: its text, and the headings above it."""

    text: str
    headings: tuple[str, ...]

    @property
    def table(self) -> bool:
        return self.text.startswith("|")

    def inside(self, headings: tuple[str, ...]) -> bool:
        return self.headings[: len(headings)] == headings


def hidden(text: str) -> str:
    """The text with code, link targets, comments and shapes blanked, letter for letter."""
    return _HIDDEN.sub(lambda found: " " * len(found[0]), text)


def parts(page: str) -> Iterator[Part]:
    """The page without its front matter, headings, code and licence."""
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    page = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.DOTALL | re.MULTILINE)
    headings: tuple[str, ...] = ()
    for text in re.split(r"\n\s*\n", page):
        for piece in re.split(r"(?m)^(?=#+ |- |\d+\. )", text.strip("\n")):
            heading = re.match(r"(#+) .*\n?", piece)
            if heading:
                headings = (*headings[: len(heading[1]) - 1], heading[0])
                piece = piece[heading.end() :]
            if piece and not piece.startswith("    ") and QUOTED not in "".join(headings):
                yield Part(piece, headings)


def unfounded(page: str) -> list[str]:
    """The lines with a measured number, but those declared as noted or as set."""
    all_parts = list(parts(page))
    free: list[tuple[str, ...]] = [h for p in all_parts if (h := _freed(p)) is not None]
    bad: list[str] = []
    before = None
    for part in all_parts:
        excused = SET in part.text or NOTED.search(part.text) or any(map(part.inside, free))
        excused = excused or (part.table and before is not None and NOTED.search(before.text))
        if not excused:
            bad += measurements(part)
        before = part
    return bad


def _freed(part: Part) -> tuple[str, ...] | None:
    """The headings of what a remark covers beyond its paragraph."""
    noted = NOTED.search(part.text)
    if noted and "this page" in noted[0].lower():
        return ()
    return part.headings if noted and "this section" in noted[0].lower() else None


def measurements(part: Part) -> list[str]:
    """The lines of a part that hold a measured number."""
    lines = hidden(part.text).split("\n")
    patterns, first = (_MEASURED, _DECIMAL, _WORDS), 0
    if part.table:
        patterns, first = (NUMBER if _of_numbers(lines) else _MEASURED,), 2
        lines = [_cells(line) for line in lines]
    found = [i for i, line in enumerate(lines) if any(p.search(line) for p in patterns)]
    return [part.text.split("\n")[i].strip() for i in found if i >= first]


def _of_numbers(lines: list[str]) -> bool:
    """Whether a table has columns to the right, or a row of numbers."""
    cells = [[cell.strip() for cell in _cells(line).split("|")] for line in lines[2:]]
    return "-:" in lines[1] or any(sum(map(bool, map(NUMBER.fullmatch, row))) > 1 for row in cells)


def _cells(line: str) -> str:
    """A table's line without its first cell, which names the row."""
    return line.partition("|")[2].partition("|")[2]
