"""Which method answers first."""

from __future__ import annotations

from collections import Counter

from foretoken.bench.plan import Unit
from foretoken.bench.run.order import Order
from foretoken.bench.suites.suite import Prompt

LABELS = ["a", "b", "c"]


def alone(task: str, number: int, turns: int = 1) -> Unit:
    return Unit((Prompt(f"{task}{number}", task, ("x",) * turns),), 1, 0.0)


def test_the_others_follow_in_their_order() -> None:
    """Each method is first once in three."""
    order = Order()
    found = [order.of(LABELS, alone("t", i), 0) for i in range(3)]
    assert sorted(found) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_no_task_has_a_first_method_of_its_own() -> None:
    """Where as many tasks as methods take turns."""
    order, firsts = Order(), {task: Counter[str]() for task in "xyz"}
    for number in range(6):
        for task in "xyz":
            firsts[task][order.of(LABELS, alone(task, number), 0)[0]] += 1
    assert all(found == {"a": 2, "b": 2, "c": 2} for found in firsts.values())


def test_turns_and_lengths_of_conversations_are_counted_apart() -> None:
    """Where one prompt of each length follows another, and each has as many turns as it may."""
    order, firsts = Order(), dict[tuple[int, int], Counter[str]]()
    for number in range(6):
        for turns in (1, 2):
            for turn in range(turns):
                [first, *_] = order.of(LABELS, alone("t", number, turns), turn)
                firsts.setdefault((turns, turn), Counter())[first] += 1
    assert all(found == {"a": 2, "b": 2, "c": 2} for found in firsts.values())


def test_a_run_that_is_resumed_does_not_begin_as_every_run_does() -> None:
    """Which method is first after a resume follows from the prompt there, and is as often one as
    another; the same prompt begins with the same method."""
    firsts = Counter(Order().of(LABELS, alone("t", i), 0)[0] for i in range(300))
    assert set(firsts) == {*LABELS} and min(firsts.values()) > 70
    assert Order().of(LABELS, alone("t", 5), 0) == Order().of(LABELS, alone("t", 5), 0)
