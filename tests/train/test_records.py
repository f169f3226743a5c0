"""Texts as flat arrays."""

from __future__ import annotations

from foretoken.train.records import Records


def test_joined_and_split() -> None:
    """Joined and split, every text stands as it was."""
    one = Records.of([([1, 2], [3]), ([4], [5, 6])], 8, 9)
    both = Records.joined([one, Records.of([([], [7, 8])], 4, 9)])
    assert [(both.prompt(i), both.answer(i)) for i in range(3)] == [
        ([1, 2], [3]),
        ([4], [5, 6]),
        ([], [7, 8]),
    ]
    learned, held = both.split(1)
    assert len(learned) == 2 and held.answer(0) == [3] and both.limit == 8
    assert len(both.apart(held)) == 2 and len(both.apart(both)) == 1  # what has no prompt stays


def test_a_part_without_texts() -> None:
    """Its numbers are whole ones too."""
    both = Records.joined([Records.of([([1], [2])], 4, 9), Records.of([], 4, 9)])
    assert len(both.without_loops(0.0)) == 1 and both.prompt(0) == [1]


def test_answers_that_loop_are_left_out() -> None:
    """One that has just the share of different pieces that is asked for stays."""
    records = Records.of([([1], [2] * 12), ([1], [*range(12)])], 16, 97)
    kept = records.without_loops(1.0)
    assert [kept.answer(i) for i in range(len(kept))] == [[*range(12)]]
