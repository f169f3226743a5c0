"""Makes the numbers of the pages from the records, and finds those that have none.

A page (README.md, docs/, the cards of the bundled models) names a record in one of two ways:

    <!-- table NAME -->           the lines up to the end mark are made whole by page_tables.py
    <!-- end -->
    0.184<!-- online.json: rate_frozen -->     the number before the mark is the record's, rounded
                                               to the places that are printed (times 100 before %)

A mark holds paths into the record, keys parted by ": " and paths by "; ". Each value, and each of a
list (an interval), belongs to one of the last numbers before the mark. What has to be computed
from a record first is in page_values.py.

A number of speed, acceptance or time without a record stands where the page says when and on what
machine it was noted, in one italic sentence: *Noted in November 2026 on 2 cores of an AMD EPYC.*
It covers its paragraph and a table right after it; with "this section" or "this page" in the
sentence, that. A number that was set, not measured, has <!-- not measured --> in its paragraph.

    python benchmarks/pages.py            writes the numbers and tables again
    python benchmarks/pages.py --check    changes nothing; fails where a page differs or a number
                                          has neither
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from page_claims import NUMBER, hidden, unfounded
from page_tables import TABLES
from page_values import DERIVED

from foretoken.errors import ForetokenError

ROOT = Path(__file__).parents[1]
RECORDS = (ROOT / "benchmarks" / "results", ROOT / "tests")
TABLE = re.compile(  # which holds no other mark, so that one without its end takes no page with it
    r"(?<=<!-- table )([\w.-]+)( -->\n\n)((?:(?!<!-- ).)*?)(\n\n<!-- end -->)", re.DOTALL
)
MARK = re.compile(r"<!-- ([\w.-]+\.json): (.+?) -->")

Read = Callable[[str], dict[str, Any]]
"""A record by its file's name."""
Spell = Callable[[str, float, bool], str]
"""What to write for a number: as it was printed, its value, whether a % follows."""


@cache
def recorded(name: str) -> dict[str, Any]:
    """A record of this tree. Raises FileNotFoundError for one that isn't there."""
    for folder in RECORDS:
        if (folder / name).is_file():
            record: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
            return record
    raise FileNotFoundError(name)


def pages() -> list[Path]:
    """Every page whose numbers are held to the records."""
    cards = sorted((ROOT / "zoo" / "foretoken_zoo").glob("*/README.md"))
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md")), *cards]


def made(page: str, read: Read = recorded) -> str:
    """The page with its tables and numbers made from the records.

    Raises ForetokenError where a record, or a field that is named, is not there.
    """
    return numbered(TABLE.sub(lambda found: _table(found, read), page), read, spelled)


def _table(found: re.Match[str], read: Read) -> str:
    name, opening, _, end = found.groups()
    if name not in TABLES:
        raise ForetokenError(f"No table is called {name!r}; page_tables.py has {', '.join(TABLES)}")
    try:
        return f"{name}{opening}{TABLES[name](read)}{end}"
    except (KeyError, IndexError, FileNotFoundError) as error:
        raise ForetokenError(f"Table {name!r} lacks {error.args[0]!r} in its records") from None


def numbered(page: str, read: Read, spell: Spell) -> str:
    """The page with the numbers that have a mark written by `spell`."""
    pieces, done = [], 0
    for mark in MARK.finditer(page):
        begin = max(done, page.rfind("\n\n", 0, mark.start()) + 1)
        values = [value for path in mark[2].split("; ") for value in _values(mark[1], path, read)]
        pieces += [page[done:begin], _written(page[begin : mark.start()], values, spell, mark[0])]
        pieces, done = [*pieces, mark[0]], mark.end()
    return "".join([*pieces, page[done:]])


def _written(text: str, values: Sequence[float], spell: Spell, mark: str) -> str:
    """The text with its last numbers written by `spell`."""
    numbers = list(NUMBER.finditer(hidden(text)))[-len(values) :]
    if len(numbers) < len(values):
        raise ForetokenError(f"{mark} names {len(values)} values after {len(numbers)} numbers")
    for number, value in reversed(list(zip(numbers, values, strict=True))):
        percent = text[number.end() :].lstrip().startswith("%")
        text = text[: number.start()] + spell(number[0], value, percent) + text[number.end() :]
    return text


def spelled(printed: str, value: float, percent: bool) -> str:
    """The value, rounded to the places that were printed."""
    places = len(printed.partition(".")[2])
    return f"{value * (100 if percent else 1):,.{places}f}"


def _values(name: str, path: str, read: Read) -> list[float]:
    """The numbers that a path leads to: one, or a list's."""
    try:
        found: Any = read(name)
        keys = path.split(": ")
        if keys[0] not in found and name in DERIVED:
            found = DERIVED[name](found)
        for key in keys:
            found = found[int(key) if isinstance(found, list) else key]
        return [float(value) for value in (found if isinstance(found, list) else [found])]
    except (KeyError, IndexError, TypeError, ValueError, FileNotFoundError):
        raise ForetokenError(f"{name} has no number {path!r}, which a page names") from None


def without_record(page: str, read: Read = recorded) -> list[str]:
    """The lines of a page with a number that has no record and isn't declared to have none."""
    rest = numbered(TABLE.sub(r"\1\2\4", page), read, lambda *_: "…")
    return unfounded(rest)


def faults(page: str, read: Read = recorded) -> Iterator[str]:
    """What is wrong with a page, in lines."""
    lines = difflib.unified_diff(page.splitlines(), made(page, read).splitlines(), n=0, lineterm="")
    yield from (line for line in lines if not line.startswith(("---", "+++", "@@")))
    yield from (f"without a record: {line}" for line in without_record(page, read))
    made_here = {found.start() for found in TABLE.finditer(page)}
    for found in re.finditer(r"(?<=<!-- table )[\w.-]+(?= -->)", page):
        if found.start() not in made_here:
            yield f"table {found[0]} has no text between blank lines and its end, so none is made"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail if it would")
    given = parser.parse_args()
    bad = False
    for path in pages():
        page = path.read_text(encoding="utf-8")
        try:
            if not given.check:
                page = made(page)
                path.write_text(page, encoding="utf-8")
            found = list(faults(page))
        except ForetokenError as error:
            found = [str(error)]
        for line in found:
            print(f"{path.relative_to(ROOT)}: {line}")
        bad = bad or bool(found)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
