"""What is concluded from given measurements."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import pytest

from foretoken.bench.plan import Unit
from foretoken.bench.record import BASELINE
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.prediction import Prediction
from foretoken.recommender.served import Cell, Served
from foretoken.recommender.verdict import LEAST, Row, rows, verdict
from recommended import Pace, Table, given, prompts

GREEDY, WARM, EIGHT, WARM_EIGHT = Cell(1, 0.0), Cell(1, 1.0), Cell(8, 0.0), Cell(8, 1.0)


def row(method: str, cell: Cell, speedup: float, low: float, high: float, groups: int = 9) -> Row:
    return Row(method, {"method": method}, cell, groups, 50.0, 2.0, speedup, low, high)


def test_a_winner_everywhere() -> None:
    """One method for all cells, with its intervals; not the one that is fastest in one of them."""
    found = verdict(
        [
            row("pld", GREEDY, 1.9, 1.7, 2.1),
            row("pld", WARM, 1.5, 1.3, 1.8),
            row("sps", GREEDY, 2.0, 1.6, 2.5),
            row("sps", WARM, 0.9, 0.8, 1.0),
        ],
        [GREEDY, WARM],
    )
    assert found.method == "pld"
    assert found.sentence == (
        "use pld: 1.90× (1.70–2.10) greedy, 1.50× (1.30–1.80) at temperature 1"
    )
    assert [one.cell for one in found.chosen] == [GREEDY]


def test_where_others_pay_or_nothing_does() -> None:
    """Cell by cell; a batch size at which nothing pays is named once."""
    found = verdict(
        [
            row("pld", GREEDY, 1.9, 1.7, 2.1),
            row("pld", WARM, 0.8, 0.7, 0.9),
            row("sps", WARM, 1.2, 1.1, 1.3),
            row("sps", EIGHT, 1.1, 0.9, 1.3),
            row("pld", WARM_EIGHT, 0.7, 0.6, 0.8),
        ],
        [GREEDY, WARM, EIGHT, WARM_EIGHT],
    )
    assert found.sentence == (
        "use pld: 1.90× (1.70–2.10) greedy; at temperature 1 use sps: 1.20× (1.10–1.30); "
        "at batch 8 nothing pays"
    )
    assert [one.method for one in found.chosen] == ["pld", "sps"]


@pytest.mark.parametrize("low", [0.7, 1.0, 1.004])
def test_an_interval_that_includes_1(low: float) -> None:
    """Is no winner's, however large its speedup; what is printed as 1.00 is 1."""
    found = verdict([row("pld", GREEDY, 1.8, low, 3.0)], [GREEDY])
    assert found.method is None and not found.chosen
    assert found.sentence.startswith(
        "nothing pays for certain: decode plainly, or give it more time (the fastest: pld 1.80×"
    )
    assert verdict([row("pld", GREEDY, 1.8, 1.01, 3.0)], [GREEDY]).method == "pld"


def test_what_is_slower_everywhere() -> None:
    """There is nothing to wait for."""
    some = [row("pld", GREEDY, 0.9, 0.8, 1.0), row("sps", WARM, 0.7, 0.6, 0.8)]
    assert verdict(some, [GREEDY, WARM]).sentence == (
        "nothing pays: decode plainly (the fastest: pld 0.90× (0.80–1.00) greedy, "
        "sps 0.70× (0.60–0.80) at temperature 1)"
    )


def test_too_few_groups() -> None:
    """Nothing is concluded of a cell with fewer than `LEAST`, whatever its interval is."""
    few = row("pld", GREEDY, 2.0, 1.9, 2.1, groups=LEAST - 1)
    found = verdict([few], [GREEDY])
    assert found.method is None and "4 groups of prompts in a cell, and 5 are" in found.sentence
    fewer = row("sps", GREEDY, 2.0, 1.9, 2.1, groups=1)
    assert verdict([few, fewer], [GREEDY]).sentence == found.sentence
    found = verdict([few, row("pld", WARM, 1.5, 1.4, 1.6)], [GREEDY, WARM])
    assert found.sentence == (
        "use pld: 1.50× (1.40–1.60) at temperature 1; greedy fewer than 5 groups of prompts were "
        "timed, which is too little to say"
    )


def test_screened_only() -> None:
    """What was interrupted before anything was timed names the most promising as no more."""
    sps = Candidate("sps small, 3 tokens", {"method": "sps"})
    found = verdict([], [GREEDY], [Prediction("sps small", sps, {GREEDY: 1.7})])
    assert found.method is None and "sps small, 3 tokens promises most" in found.sentence


def measured(paces: Mapping[str, Pace | float], count: int) -> Seq[Row]:
    table, served = Table(paces), Served()
    for prompt in prompts(count):
        served.add(GREEDY, table.serve(Unit((prompt,), 1, 0.0)))
    candidates = [Candidate(name, {"method": name}) for name in paces]
    return rows(candidates, served, [GREEDY, WARM])


def test_the_best_of_many_is_lucky() -> None:
    """The same measurements have a wider interval among six methods than alone."""

    def pace(unit: Unit) -> float:
        return 1.1 + 0.1 * int(unit.group[1:])

    six = {name: pace for name in "abcdef"}
    [_, alone], [_, one, *others] = measured({"a": pace}, 9), measured(six, 9)
    assert alone.speedup == one.speedup and len(others) == 5
    assert None not in (alone.low, alone.high, one.low, one.high)
    assert (one.low or 0) < (alone.low or 0) and (one.high or 0) > (alone.high or 0)


def test_rows_from_answers() -> None:
    """Plain decoding first; cells without answers have no row, loops are not counted."""
    plain, pld = measured({"pld": 2.0}, 6)
    assert (plain.method, plain.config, plain.speedup) == (BASELINE, None, 1.0)
    assert plain.tokens_per_second == pytest.approx(100) and pld.pays and pld.groups == 6
    assert str(pld) == "2.00× (2.00–2.00)" and pld.tokens_per_step == 2
    one = measured({"pld": 2.0}, 1)[1]
    assert one.low is None and not one.enough and str(one) == "2.00×"
    served = Served()
    [unit] = [Unit(tuple(prompts(1)), 1, 0.0)]
    served.add(GREEDY, given(unit, BASELINE, 80, token_ids=[1] * 8) + given(unit, "pld", 10))
    assert not rows([Candidate("pld", {"method": "pld"})], served, [GREEDY])


def test_what_pays_in_more_cells_comes_first() -> None:
    """Before what gains more in one of them."""
    some = [
        row("sps", GREEDY, 4.0, 3.0, 5.0),
        row("pld", GREEDY, 1.2, 1.1, 1.3),
        row("pld", WARM, 1.2, 1.1, 1.3),
    ]
    assert verdict(some, [GREEDY, WARM]).method == "pld"


def test_enough_groups() -> None:
    """`LEAST` of them are."""
    found = verdict([row("pld", GREEDY, 2.0, 1.9, 2.1, groups=LEAST)], [GREEDY])
    assert found.method == "pld"


def test_a_batch_size_is_named_where_all_of_it_is_meant() -> None:
    """Some of its temperatures are named each."""
    cells = [GREEDY, WARM, Cell(1, 0.5)]
    some = [row("pld", cell, 0.9, 0.8, 1.0) for cell in cells[:2]]
    found = verdict([*some, row("pld", cells[2], 1.5, 1.4, 1.6)], cells)
    assert found.sentence.endswith("; greedy nothing pays; at temperature 1 nothing pays")
