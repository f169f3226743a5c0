"""How the time is spent, by a clock that only serving moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

import pytest

from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.race import SCREENING, Allowance, Screening, Timing, affordable
from foretoken.recommender.served import Cell
from recommended import Table, prompts
from recommender.test_prediction import COSTS

CELLS = [Cell(1, 0.0), Cell(1, 1.0)]
PACES = {"a": 4.0, "b": 2.0, "c": 1.0, "d": 0.2}
CANDIDATES = [Candidate(name, {"method": name}) for name in PACES]


def nothing() -> None:
    return


def screened(table: Table, seconds: float, least: int = 2) -> Screening:
    screening = Screening(CANDIDATES, prompts(20), CELLS, COSTS)
    allowance = Allowance.starting(seconds, table.clock)
    screening.run(table.serve, table.keep, allowance, least, nothing)
    return screening


def test_halving_keeps_the_better() -> None:
    """A prompt at each temperature for all, and half of them stay; their time isn't spent on."""
    table = Table(PACES)
    screening = screened(table, 1000.0)
    assert len(screening.left) == 2 and len(table.units) == 2 and screening.used == 1
    assert {one.label for one in screening.dropped()} | {one.label for one in screening.left} == {
        *PACES
    }
    table = Table(PACES)
    assert len(screened(table, 1000.0, least=1).left) == 1
    assert len(table.units) == 2 + 4, "twice as many prompts in the second round"


def test_screening_has_its_share() -> None:
    """At least one unit, and none after its share of the time."""
    table = Table(PACES)
    screening = screened(table, 0.01, least=1)
    assert len(table.units) == 1 and len(screening.predictions()) == 4
    table = Table(PACES)
    screened(table, 1.0, least=1)
    assert table.now > SCREENING and len(table.units) < 6


def test_a_method_that_fails_drops_out() -> None:
    """And what it said is kept."""
    table = Table({"a": 2.0, "b": 2.0, "c": 2.0})

    def serve(unit: Unit) -> list[Answer]:
        found = table.serve(unit)
        for answer in found:
            if answer.method == "a":
                answer.error = "no memory"
        return found

    screening = Screening(CANDIDATES[:3], prompts(9), CELLS, COSTS)
    screening.run(serve, table.keep, Allowance.starting(99, table.clock), 2, nothing)
    assert [one.label for one in screening.left] == ["b", "c"]
    assert screening.failures() == {"a": "no memory"}


def timed(table: Table, cells: Seq[Cell], seconds: float) -> Timing:
    timing = Timing(prompts(20), cells)
    timing.run(table.serve, Allowance.starting(seconds, table.clock), nothing)
    return timing


def test_cells_share_the_time() -> None:
    """The cell that has had least is next, so a batch whose units take as long as others' has as
    many; groups are disjoint, and none is cut."""
    table = Table({"a": lambda unit: 0.25 if unit.temperature else 1.0})
    timed(table, CELLS, 20.0)
    count = Counter(unit.temperature for unit in table.units)
    assert count[0.0] == pytest.approx(count[1.0] * 2.5, abs=1)
    assert table.now <= 20.0, "no unit is begun that would end too late"
    table = Table({"a": 1.0})
    timed(table, [Cell(8, 0.0)], 0.6)
    assert [len(unit.prompts) for unit in table.units] == [8] * len(table.units)
    assert len({unit.group for unit in table.units}) == 2, "then the first group again"


def test_an_interrupt_keeps_what_is_known() -> None:
    """Ctrl-C in the middle of a unit loses this one only."""
    table, timing = Table({"a": 2.0}), Timing(prompts(20), CELLS)

    def serve(unit: Unit) -> list[Answer]:
        if len(table.units) == 7:
            raise KeyboardInterrupt
        return table.serve(unit)

    with pytest.raises(KeyboardInterrupt):
        timing.run(serve, Allowance.starting(99, table.clock), nothing)
    known = [timing.served.compared("a", cell) for cell in CELLS]
    assert sum(one.groups for one in known if one is not None) == 7


def test_how_many_are_timed() -> None:
    """Ten answers of 100 passes, 10 ms each, in two cells are 20 s a row; plain decoding and auto
    are rows too."""
    assert [affordable(COSTS, CELLS, 100, seconds) for seconds in (60, 180, 1e4)] == [2, 3, 4]


def test_the_longest_unit_so_far_must_fit() -> None:
    """And not only one as long as the last."""
    now, took = [0.0], iter([1.0, 5.0, *[1.0] * 20])

    def serve(unit: Unit) -> list[Answer]:
        now[0] += next(took)
        return []

    timing = Timing(prompts(20), CELLS[:1])
    timing.run(serve, Allowance.starting(12.0, lambda: now[0]), nothing)
    assert now[0] == 8.0


@pytest.mark.parametrize(("many", "left"), [(3, 2), (4, 2), (5, 3)])
def test_of_an_odd_number_the_larger_half_stays(many: int, left: int) -> None:
    paces = {name: 1.0 + place for place, name in enumerate("abcde"[:many])}
    table, candidates = Table(paces), [Candidate(name, {"method": name}) for name in paces]
    screening = Screening(candidates, prompts(1), CELLS, COSTS)
    screening.run(table.serve, table.keep, Allowance.starting(1e3, table.clock), 1, nothing)
    assert len(screening.left) == left


def test_who_failed_only_sometimes_did_not_fail() -> None:
    """What it answered is known of it."""
    table = Table({"a": 2.0, "b": 2.0})

    def serve(unit: Unit) -> list[Answer]:
        found = table.serve(unit)
        for answer in found:
            if answer.method == "a" and unit.temperature == 0:
                answer.error = "no memory"
        return found

    screening = Screening(CANDIDATES[:2], prompts(1), CELLS, COSTS)
    screening.run(serve, table.keep, Allowance.starting(99, table.clock), 1, nothing)
    assert screening.failures() == {}


def test_one_unit_is_served_though_loading_took_long() -> None:
    table = Table(PACES)
    screening = Screening(CANDIDATES, prompts(20), CELLS, COSTS)
    late = Allowance(1.0, table.clock, began=-9.0)
    screening.run(table.serve, table.keep, late, 2, nothing)
    assert len(table.units) == 1 and len(screening.predictions()) == 4
