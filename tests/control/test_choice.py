"""What a choice says of each sequence."""

from __future__ import annotations

from foretoken.control.choice import Choice


def test_rows_by_drafter() -> None:
    """In the order in which drafters appear; who drafts nothing is left out."""
    choice = Choice([1, None, 0, 1], [2, 0, 3, 1], 1.0)
    assert list(choice.rows().items()) == [(1, [0, 3]), (0, [2])]
    assert Choice([None], [0], 1.0).rows() == {}
