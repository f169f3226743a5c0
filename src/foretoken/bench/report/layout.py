"""Tables as data, from which terminal, report.md and report.html are drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

NONE = "–"
"""The text of an empty cell."""


@dataclass(frozen=True)
class Head:
    """A column's head. Neighbours with the same `over` share a head above theirs.

    short: its text in a terminal, which leaves the column out if it is narrower than `least`.
    """

    text: str
    over: str = ""
    left: bool = False
    short: str = ""
    least: int = 0


@dataclass(frozen=True)
class Cell:
    """`detail` follows the text in a fainter colour; `strong` marks the best of its kind."""

    text: str
    detail: str = ""
    strong: bool = False

    @property
    def full_text(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True)
class Row:
    """method: the measured method that the row is about, if any; it gives the row a colour."""

    name: str
    cells: tuple[Cell, ...]
    method: str = ""
    detail: str = ""

    @property
    def full_text(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name


@dataclass(frozen=True)
class Group:
    """Rows under a common title; `key` is the same in columns, where titles can't be shown."""

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
        """Whether a column has another head above it than its left neighbour."""
        return column > 0 and self.heads[column].over != self.heads[column - 1].over

    def spaced(self, column: int) -> bool:
        """Whether any cell of a column has detail, so that all reserve room for it."""
        return any(row.cells[column].detail for group in self.groups for row in group.rows)


def filled(table: Table) -> Table | None:
    """The table without empty columns, rows and groups; None where nothing is left."""
    rows = [row for group in table.groups for row in group.rows]
    kept = [i for i in range(len(table.heads)) if any(r.cells[i].text != NONE for r in rows)]
    groups = []
    for group in table.groups:
        narrowed = [replace(row, cells=tuple(row.cells[i] for i in kept)) for row in group.rows]
        not_empty = tuple(row for row in narrowed if any(cell.text != NONE for cell in row.cells))
        if not_empty:
            groups.append(replace(group, rows=not_empty))
    if not groups:
        return None
    return replace(table, heads=tuple(table.heads[i] for i in kept), groups=tuple(groups))
