"""Options of `foretoken simulate`: each counts under its own name, and those that don't go together
are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretoken.bench.measure.simulate import Machine, roofline
from foretoken.cli.simulate_options import Asked, Costs, Rates, _check_free, _run
from foretoken.errors import ForetokenError

LINE = Costs(parameters=7e9, bandwidth_gb_s=2000.0, tflops=300.0)


def test_a_roofline_takes_each_number_for_what_it_is() -> None:
    given = replace(LINE, bytes_per_parameter=0.5, kv_bytes_per_token=1e6, context=900)
    machine, source = given.machine(None, None, 0.0)
    expected = roofline(7e9, 0.5, 2000.0, 300.0, 1e6, 900)
    assert [machine.target(n, 8) for n in (1, 64)] == [expected(n, 8) for n in (1, 64)]
    assert source == (
        "roofline of entered numbers (7e+09 parameters of 0.5 bytes, 2000 GB/s, 300 TFLOP/s), "
        "drafting free"
    )


def test_costs_of_the_drafter_and_of_the_engine() -> None:
    """Shares of a plain pass."""
    machine, source = Costs(curve="1:30,8:60", draft_cost=0.1, other=0.5).machine(None, None, 0.0)
    assert machine.draft is not None and machine.draft(1, 8) == pytest.approx(6.0)
    assert machine.other == 0.5 and source.startswith("entered curve, the engine's own work")


@pytest.mark.parametrize("option", ["bytes_per_parameter", "kv_bytes_per_token", "context"])
def test_what_only_a_roofline_has(option: str) -> None:
    """Is no part of a curve, which would leave it out."""
    changed: dict[str, Any] = {option: 7}
    given = replace(Costs(curve="1:30"), **changed)
    with pytest.raises(ForetokenError, match=f"--{option.replace('_', '-')} is of a roofline"):
        given.machine(None, None, 0.0)


def test_batch_sizes() -> None:
    assert Asked(batch_sizes="1,8").sizes == [1, 8]
    with pytest.raises(ForetokenError, match="each must be at least 1"):
        print(Asked(batch_sizes="0,8").sizes)


def test_rates_without_a_run() -> None:
    assert Rates(acceptance="0.8").read() == (None, None)
    with pytest.raises(ForetokenError, match="--temperature is of a run"):
        Rates(temperature=0.0).read()
    with pytest.raises(ForetokenError, match=r"say in which results\.json"):
        Rates(method="pld").read()


def test_a_row_for_each_batch_size() -> None:
    """Of a chain, or of a tree with as many nodes as were asked for."""
    machine = Machine(lambda batch, tokens: 30.0)
    asked = Asked(draft_length=2, nodes=3, batch_sizes="1,4")
    rows, about = Rates(ranks="0.6,0.2").predictions(machine, None, asked)
    assert [(row.batch_size, row.nodes) for row, _ in rows] == [(1, 3), (4, 3)]
    assert about == "entered by rank: 0.6,0.2"
    with pytest.raises(ForetokenError, match="--nodes is of a tree"):
        Rates(acceptance="0.8").predictions(machine, None, asked)


def test_the_run_of_the_smallest_batch() -> None:
    runs = [{"method": "pld", "temperature": 0.0, "batch_size": size} for size in (4, 1, 8)]
    found: Any = {"runs": runs}
    assert _run(found, "pld", 0.0)["batch_size"] == 1
    with pytest.raises(ForetokenError, match="'pld' was not measured at temperature 1"):
        _run(found, "pld", 1.0)


def test_what_drafts_for_nothing_must_be_known() -> None:
    """That its cost wasn't measured doesn't say so."""
    costs: Any = {"costs": {"drafts": {"pld": None}}}
    run: Any = {"method": "pld"}
    _check_free(costs, run)
    run["method"] = "eagle"
    with pytest.raises(ForetokenError, match="the drafter of 'eagle' costs was not measured"):
        _check_free(costs, run)
