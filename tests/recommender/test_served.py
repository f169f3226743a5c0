"""A method beside plain decoding, over the same units."""

from __future__ import annotations

import pytest

from foretoken.bench.plan import Unit
from foretoken.bench.record import BASELINE
from foretoken.recommender.served import Cell, Served
from recommended import Table, given, prompts

ALONE = Cell(1, 0.0)


def units(count: int) -> list[Unit]:
    return [Unit((prompt,), 1, 0.0) for prompt in prompts(count)]


def test_the_interval_is_of_pairs() -> None:
    """Answers that take up to fifty times as long as others, by a machine or a prompt: where a
    method gains a half on each, its interval is narrow; that of unpaired times is not."""
    served, slow = Served(), [1, 7, 50, 2, 20, 3, 1, 30]
    for unit, factor in zip(units(8), slow, strict=True):
        wobble = 1 + 0.01 * (-1) ** factor
        own = given(unit, "pld", 80 * factor / 1.5 * wobble)
        served.add(ALONE, given(unit, BASELINE, 80.0 * factor) + own)
    compared = served.compared("pld", ALONE)
    assert compared is not None and compared.groups == 8
    numbers, plain = compared.numbers()
    low, high = numbers["speedup_ci95"] or (0.0, 0.0)
    assert 1.45 < low < (numbers["speedup"] or 0.0) < high < 1.55
    assert plain["speedup"] == 1


def test_only_units_that_both_answered() -> None:
    """A method that left early is compared with plain decoding of its own minutes, not with that
    of the same prompt in a second round."""
    table, served = Table({"pld": 2.0, "sps": 2.0}), Served()
    [unit] = units(1)
    served.add(ALONE, table.serve(unit))
    served.add(ALONE, given(unit, BASELINE, 8000.0) + given(unit, "sps", 8000.0))
    pld, sps = (served.compared(name, ALONE) for name in ("pld", "sps"))
    assert pld is not None and pld.numbers()[0]["speedup"] == pytest.approx(2)
    assert sps is not None and sps.numbers()[0]["speedup"] == pytest.approx(1, abs=0.01)
    assert served.compared("pld", Cell(4, 0.0)) is None


def test_failures_and_loops() -> None:
    """A prompt that fails is no answer, one that plain decoding answers with a loop doesn't
    count."""
    served, (first, second) = Served(), units(2)
    served.add(ALONE, given(first, BASELINE, 80) + given(first, "pld", 0, error="no memory"))
    assert served.compared("pld", ALONE) is None and served.errors("pld") == ["no memory"]
    looping = given(second, BASELINE, 80, token_ids=[1] * 8)
    served.add(ALONE, looping + given(second, "pld", 10))
    compared = served.compared("pld", ALONE)
    assert compared is not None and not compared.without_loops().answers
    assert served.loops == 1


def test_how_a_cell_is_called() -> None:
    names = [str(Cell(1, 0.0)), str(Cell(1, 0.7)), str(Cell(8, 0.0))]
    assert names == ["greedy", "at temperature 0.7", "greedy at batch 8"]
