"""Tables as data: heads over several columns, and what is left out."""

from __future__ import annotations

from foretoken.bench.report.layout import NONE, Cell, Group, Head, Row, Table, filled

HEADS = (Head("a", "left"), Head("b", "left"), Head("c", "right"))


def table(*rows: tuple[str, str, str]) -> Table:
    """One group of rows, all with the same heads."""
    body = tuple(Row(str(i), tuple(map(Cell, texts))) for i, texts in enumerate(rows))
    return Table("t", "name", ("k",), HEADS, (Group("g", ("1",), body),))


def test_neighbours_share_the_head_above_theirs() -> None:
    """With the number of columns under it; a column where it changes has an edge."""
    found = table(("1", "2", "3"))
    assert found.spans == [("left", 2), ("right", 1)]
    assert [found.edge(i) for i in range(3)] == [False, False, True]


def test_empty_columns_and_rows_are_left_out() -> None:
    """What has a text stays in its order."""
    found = filled(table(("1", NONE, NONE), (NONE, NONE, NONE), (NONE, NONE, "3")))
    assert found is not None
    assert [head.text for head in found.heads] == ["a", "c"]
    [group] = found.groups
    assert [[cell.text for cell in row.cells] for row in group.rows] == [["1", NONE], [NONE, "3"]]


def test_an_empty_table_is_none() -> None:
    """No heads without anything under them."""
    assert filled(table((NONE, NONE, NONE))) is None


def test_detail_stands_in_brackets_and_reserves_room() -> None:
    """In plain text; in a column where one cell has it, all leave room."""
    row = Row("0", (Cell("1", "1–2"), Cell("2"), Cell("3")))
    found = Table("t", "name", (), HEADS, (Group("", (), (row,)),))
    assert [cell.full_text for cell in row.cells] == ["1 (1–2)", "2", "3"]
    assert [found.spaced(i) for i in range(3)] == [True, False, False]
