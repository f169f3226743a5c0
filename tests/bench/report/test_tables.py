"""The tables of a report: what is bold, left out, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import synthetic
from foretoken.bench.report import tables
from foretoken.bench.report.folder import read_folder
from foretoken.bench.report.layout import NONE, Cell, Table


def test_the_best_is_bold_and_never_an_approximate_method() -> None:
    """The fastest is approximate and marked; the fastest lossless one is in bold."""
    found = tables.headline([synthetic.results(temperatures=(0.0,), sizes=(1,))])
    assert found is not None
    strong = [r.name for g in found.groups for r in g.rows if any(c.strong for c in r.cells)]
    assert strong == ["sps"]
    names = [row.name for row in found.groups[0].rows]
    assert names[:3] == ["autoregressive", "medusa_typical ≈", "sps"]


def test_nothing_is_bold_without_a_winner() -> None:
    """Not on fewer than eight prompts, nor where the interval includes 1: in both tables of it."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    best = next(run for run in part["runs"] if run["method"] == "sps")

    def bold() -> list[str]:
        found = [tables.headline([part]), tables.targets([part])]
        rows = [row for table in found if table for group in table.groups for row in group.rows]
        return [row.method for row in rows if any(cell.strong for cell in row.cells)]

    assert bold() == ["sps", "sps"]
    best["prompts"] = 7
    assert bold() == []
    best |= {"prompts": 8, "speedup_ci95": [1.0, 2.0]}
    assert bold() == []


def test_two_precisions_stand_in_one_table(folder: Path) -> None:
    """Side by side, with gaps where one was not measured."""
    found = tables.headline(read_folder(folder))
    assert found is not None
    assert found.spans == [("synthetic, float32", 4), ("synthetic, bfloat16, inflated", 4)]
    second = found.groups[1].rows[2].cells  # the second was measured at temperature 0 only
    assert [c.text for c in second[4:]] == [NONE] * 4 and second[0].text != NONE


def test_where_speculation_stops_paying() -> None:
    """Between sizes, beyond the largest, at none, and predicted."""
    part = synthetic.results(temperatures=(0.0,))
    part["crossover"][1]["predicted"] = True
    slow = next(run for run in part["runs"] if run["method"] == "lookahead")
    slow["speedup"] = 0.9
    found = tables.sweep(part)
    assert found is not None
    ends = {row.method: row.cells[-1].text for row in found.groups[0].rows}
    assert ends["pld"] == "5.2" and ends["sps"] == "5, predicted"
    assert ends["medusa_typical"] == "over 8" and ends["lookahead"] == "never"


def test_a_column_that_says_nothing_is_left_out() -> None:
    """Joules appear as soon as one run has them."""
    part = synthetic.results(sizes=(1,))
    found = tables.resources(part)
    assert found is not None
    assert "joules a token" not in [head.text for head in found.heads]
    part["runs"][0]["energy_j_per_token"] = 0.25
    again = tables.resources(part)
    assert again is not None and "joules a token" in [head.text for head in again.heads]
    assert all(isinstance(c, Cell) for g in again.groups for r in g.rows for c in r.cells)
    assert isinstance(again, Table)


def test_what_was_chosen_and_tuned() -> None:
    """Shares of all passes; a model by its name and not by its path."""
    part: Any = synthetic.results(temperatures=(0.0,), sizes=(1,))
    part["runs"][1]["chosen"] = {"pld": 30, "sps": 10}
    part["tuned"] = {"tuned:x": {"method": "sps", "model": "/models/draft", "depth": 3}}
    found = [tables.chosen(part), tables.tuned(part)]
    texts = [[c.text for c in t.groups[0].rows[0].cells] for t in found if t is not None]
    assert texts == [["75 %", "25 %"], ["sps", "draft", "3"]]


def test_how_much_of_either_ideal_is_reached() -> None:
    part: Any = synthetic.results(temperatures=(0.0,), sizes=(1,))
    for run in part["runs"]:
        run |= {"speedup": 1.5, "ideal": {"from_pass_costs": 2.0, "from_bytes": 3.0}}
    found = tables.ideal(part)
    assert found is not None
    texts = [cell.text for cell in found.groups[0].rows[0].cells]
    assert texts == ["1.50×", "2.00×", "75 %", "3.00×", "50 %"]


def test_what_a_text_is_worth_is_asked_of_approximate_methods() -> None:
    """And of plain decoding, to compare with."""
    found = tables.quality(synthetic.results(temperatures=(0.0,), sizes=(1,)))
    assert found is not None
    assert [row.method for row in found.groups[0].rows] == ["autoregressive", "medusa_typical"]


def test_a_batch_size_that_one_method_lacks() -> None:
    """Its column is empty, and the others stay in theirs; who failed everywhere is shown too."""
    part: Any = synthetic.results(temperatures=(0.0,), sizes=(1, 4))
    part["runs"] = [r for r in part["runs"] if (r["method"], r["batch_size"]) != ("sps", 1)]
    found = tables.sweep(part)
    assert found is not None
    rows = {row.method: [cell.text for cell in row.cells[:2]] for row in found.groups[0].rows}
    assert rows["sps"][0] == NONE != rows["sps"][1] and NONE not in rows["pld"]
    part["runs"][1] |= {"prompts": 0, "failed": 9}  # pld's
    used = tables.resources(part)
    assert used is not None
    [pld] = [row for row in used.groups[0].rows if row.method == "pld"]
    assert pld.cells[-1].text == "9"


def test_positions_are_counted_from_1() -> None:
    found = tables.positions(synthetic.results(temperatures=(0.0,), sizes=(1,)))
    assert found is not None and [head.text for head in found.heads] == ["1", "2", "3", "4", "5"]
