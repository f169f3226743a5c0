"""The method table: its rows are complete, and say what they need."""

from __future__ import annotations

from dataclasses import fields

import pytest

from foretoken import METHODS, ForetokenError
from foretoken.config import build
from foretoken.methods import Method, Need
from foretoken.registry import drafter_class, drafter_names, verifier_names
from foretoken.trees.plan import AUTO


def test_rows_are_complete() -> None:
    """Each row names what exists and says where it comes from."""
    for name, row in METHODS.items():
        assert row.name == name and row.drafter in drafter_names()
        assert row.verifier in verifier_names()
        assert row.length and row.tree and row.paper


def test_trees_that_are_planned_are_not_called_static() -> None:
    """By the option that the row sets, or else the drafter's default."""
    static = [row for row in METHODS.values() if row.tree.startswith("static")]
    assert static
    for row in static:
        defaults = {field.name: field.default for field in fields(drafter_class(row.drafter))}
        assert {**defaults, **row.options}.get("tree") != AUTO, row.name


@pytest.mark.parametrize("row", METHODS.values(), ids=list(METHODS))
def test_a_row_needs_what_it_says(row: Method) -> None:
    """A row without needs is built from its name alone; one with needs is refused without them."""
    if row.needs is Need.NOTHING:
        assert build({"method": row.name}).name == row.name
    else:
        with pytest.raises(ForetokenError):
            build({"method": row.name})


def test_trained_rows_are_those_that_need_weights() -> None:
    """`trained` follows from the needs."""
    assert METHODS["medusa"].trained and METHODS["medusa"].needs is Need.WEIGHTS
    assert not METHODS["sps"].trained and not METHODS["rest"].trained
