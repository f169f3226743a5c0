"""Another program's moment makes no winner."""

from __future__ import annotations

from foretoken.bench.plan import Unit
from foretoken.bench.record import BASELINE, Answer
from foretoken.recommender.servings import Servings
from recommended import given, prompts

UNITS = [Unit((prompt,), 1, 0.0) for prompt in prompts(6)]


def answers(unit: Unit, plain: float, own: float, **more: object) -> list[Answer]:
    return given(unit, BASELINE, plain) + given(unit, "pld", own, **more)


def milliseconds(found: list[Answer] | tuple[Answer, ...]) -> list[int]:
    return [round(1000 * answer.decoding) for answer in found]


def served(*times: tuple[float, float]) -> Servings:
    servings = Servings(iter(UNITS))
    for plain, own in times:
        unit = servings.next()
        servings.add(unit, answers(unit, plain, own))
    return servings


def test_a_disturbed_unit_is_served_again() -> None:
    """Of both servings the faster counts, for each method: the first had plain decoding slow."""
    servings = served((80, 40), (400, 45), (80, 40))
    unit = servings.next()
    assert unit == UNITS[1]
    servings.add(unit, answers(unit, 81, 50))
    assert [milliseconds(list(one)) for one in servings.counting()] == [
        [80, 40],
        [81, 45],
        [80, 40],
    ]
    assert servings.next() == UNITS[3] and servings.left_out == 0


def test_a_text_that_is_slow_both_times_stays() -> None:
    """A long one, for example; it isn't served a third time."""
    servings = served((80, 40), (80, 40), (400, 200), (400, 200))
    assert [milliseconds(list(one)) for one in servings.counting()][-1] == [400, 200]
    assert servings.next() == UNITS[3]


def test_without_time_it_does_not_count() -> None:
    """The first unit is judged too, once it is known what is usual."""
    servings = served((400, 40), (80, 40))
    assert len(servings.counting()) == 2
    servings = served((400, 40), (80, 40), (80, 40))
    assert len(servings.counting()) == 2 and servings.left_out == 1


def test_one_that_failed_has_failed() -> None:
    servings = served((80, 40), (80, 200), (80, 40))
    unit = servings.next()
    servings.add(unit, answers(unit, 80, 0, error="no memory"))
    [_, again, _] = servings.counting()
    assert [answer.error for answer in again] == [None, "no memory"]


def test_one_that_failed_at_first_has_failed() -> None:
    """Though its second serving went well."""
    servings = Servings(iter(UNITS))
    first = servings.next()
    servings.add(first, answers(first, 400, 60, error="no memory"))
    for _ in range(2):
        unit = servings.next()
        servings.add(unit, answers(unit, 80, 40))
    assert servings.next() == first
    servings.add(first, answers(first, 80, 40))
    assert [answer.error for answer in servings.counting()[0]] == [None, "no memory"]
