"""Texts as flat arrays."""

from __future__ import annotations

from foretoken.train.records import Records


def test_joined_and_split() -> None:
    """Joined and split, every text stands as it was."""
    one = Records.of([([1, 2], [3]), ([4], [5, 6])], 8, 9)
    other = Records.of([([], [7, 8])], 4, 9)
    both = Records.joined([one, other])
    assert both.limit == Records.joined([other, one]).limit == 8
    assert [(both.prompt(i), both.answer(i)) for i in range(3)] == [
        ([1, 2], [3]),
        ([4], [5, 6]),
        ([], [7, 8]),
    ]
    learned, held = both.split(1)
    assert len(learned) == 2 and held.answer(0) == [3]
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


def test_at_most_half_is_held_out() -> None:
    """Spread evenly."""
    records = Records.of([([i], [9]) for i in range(8)], 4, 97)
    for count, expected in ((9, [0, 2, 4, 6]), (2, [0, 4]), (0, [])):
        learned, held = records.split(count)
        assert [held.prompt(i) for i in range(len(held))] == [[i] for i in expected]
        assert len(learned) == 8 - len(expected)


def test_prompts_are_told_apart_by_their_tokens() -> None:
    """However these are stored."""
    short, long = (Records.of([([1, 2], [3])], 4, size) for size in (97, 70_000))
    assert short.tokens.dtype != long.tokens.dtype and not len(long.apart(short))


def test_a_part_of_them() -> None:
    records = Records.of([([1, 2], [3]), ([4], [5, 6]), ([], [7])], 4, 97)
    part = records.span(1, 3)
    assert [(part.prompt(i), part.answer(i)) for i in range(2)] == [([4], [5, 6]), ([], [7])]
