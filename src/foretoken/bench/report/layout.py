"""A table as data, so that terminal, report.md and report.html say the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

NONE = "–"
"""A cell in which there is nothing to say."""


@dataclass(frozen=True)
class Head:
    """A column's head. Neighbours with the same `over` share a head above theirs.

    `short` stands in for it in a terminal; one narrower than `least` goes without the column.
    """

    text: str
    over: str = ""
    left: bool = False
    short: str = ""
    least: int = 0


@dataclass(frozen=True)
class Cell:
    """`soft` stands after the text, less loud; `strong` marks the best of its kind."""

    text: str
    soft: str = ""
    strong: bool = False

    @property
    def words(self) -> str:
        return f"{self.text} ({self.soft})" if self.soft else self.text


@dataclass(frozen=True)
class Row:
    """`method` is given where the row is about one measured here, and has its colour then."""

    name: str
    cells: tuple[Cell, ...]
    method: str = ""
    soft: str = ""

    @property
    def words(self) -> str:
        return f"{self.name} ({self.soft})" if self.soft else self.name


@dataclass(frozen=True)
class Group:
    """Rows under a common title; `key` says the same in columns, where a title has no place."""

    title: str
    key: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """`corner` heads the rows' names, `keys` the groups' keys."""

    title: str
    corner: str
    keys: tuple[str, ...]
    heads: tuple[Head, ...]
    groups: tuple[Group, ...]
    note: str = ""

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The heads above the heads, with the number of columns that each stands over."""
        return [(over, len(list(own))) for over, own in groupby(h.over for h in self.heads)]

    def edge(self, column: int) -> bool:
        """Whether a column begins under another head than its neighbour to the left."""
        return column > 0 and self.heads[column].over != self.heads[column - 1].over

    def spaced(self, column: int) -> bool:
        """Whether cells of a column keep room for soft text after theirs."""
        return any(row.cells[column].soft for group in self.groups for row in group.rows)


def filled(table: Table) -> Table | None:
    """Without the columns, rows and groups in which no cell says anything."""
    every = [row for group in table.groups for row in group.rows]
    kept = [i for i in range(len(table.heads)) if any(r.cells[i].text != NONE for r in every)]
    groups = []
    for group in table.groups:
        found = [replace(row, cells=tuple(row.cells[i] for i in kept)) for row in group.rows]
        said = tuple(row for row in found if any(cell.text != NONE for cell in row.cells))
        if said:
            groups.append(replace(group, rows=said))
    if not groups:
        return None
    return replace(table, heads=tuple(table.heads[i] for i in kept), groups=tuple(groups))
