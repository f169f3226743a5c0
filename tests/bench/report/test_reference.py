"""Published tables: whole, sourced, and never to be mistaken for what was measured here."""

from __future__ import annotations

import pytest

import synthetic
from foretoken.bench.report.layout import NONE
from foretoken.bench.report.reference import published, sources


def test_every_published_table_is_whole() -> None:
    """A source, hardware and target for each; six tasks in each row; no method twice in a table."""
    found = sources()
    assert len(found) == 2
    for source in found:
        assert source["source"] and source["note"] and len(source["tasks"]) == 6
        for table in source["tables"]:
            assert table["hardware"] and table["target"] and table["dtype"] == "float16"
            names = [row["name"] for row in table["rows"]]
            assert len(names) == len(set(names)) >= 4
            for row in table["rows"]:
                assert len(row["speedup"]) == 6 and row["methods"]
                assert min(row["speedup"]) <= row["overall"] <= max(row["speedup"])


@pytest.mark.parametrize(
    ("name", "target", "temperature", "method", "column", "value"),
    [
        ("survey, Table 5", "Vicuna-7B-v1.3", 0, "EAGLE", "overall", 2.08),
        ("survey, Table 5", "Vicuna-7B-v1.3", 1, "SpS", "overall", 1.49),
        ("survey, Table 5", "Vicuna-7B-v1.3", 1, "REST", "tokens_per_second", 49.04),
        ("survey, Table 6", "Vicuna-33B-v1.3", 0, "Medusa", "overall", 2.01),
        ("leaderboard", "Vicuna-13B-v1.3", 0, "EAGLE3", "mean_accepted_tokens", 5.71),
        ("leaderboard", "Vicuna-33B-v1.3", 0, "Lookahead", "overall", 1.25),
    ],
)
def test_published_numbers(
    name: str, target: str, temperature: int, method: str, column: str, value: float
) -> None:
    """Read again from the paper and the leaderboard by hand."""
    [row] = [
        row
        for source in sources()
        for table in source["tables"]
        for row in table["rows"]
        if (table["name"], table["target"], table["temperature"]) == (name, target, temperature)
        and row["name"] == method
    ]
    assert row[column] == value


def test_published_rows_stand_under_the_measured_ones() -> None:
    """Ours first and in bold, theirs named as published with model and hardware."""
    found = published([synthetic.results(temperatures=(0.0, 1.0), sizes=(1, 4))])
    assert found is not None
    groups = {group.title: group.rows for group in found.groups}
    assert set(groups) == {
        *(f"{name}, temperature 0" for name in ("sps", "pld", "lookahead", "token_recycling")),
        "sps, temperature 1",
    }
    for rows in groups.values():
        assert [bool(row.method) for row in rows] == [True] + [False] * (len(rows) - 1)
        for row in rows:
            here = row.cells[0].text == "measured here"
            assert here == bool(row.method) == row.cells[0].strong
            assert here or row.cells[0].text.startswith("published: ")
            assert "Vicuna" in row.name or here
            assert row.detail
    hot = groups["sps, temperature 1"]
    assert [row.cells[7].text for row in hot] == ["1.34×", "1.49×"]
    assert len(groups["sps, temperature 0"]) == 1 + 1 + 3 + 4
    assert "Published and not measured here: EAGLE," in found.note
    assert "arXiv:2401.07851" in found.note


def test_measured_rows_name_the_device_that_was_used() -> None:
    """Not every GPU that is there."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,), device="cpu")
    part["environment"]["gpu"] = "Made-up GPU"
    found = published([part])
    assert found is not None
    assert found.groups[0].rows[0].detail == "float32, Made-up CPU @ 2.10GHz"


def test_tasks_that_spec_bench_lacks_are_not_shown_as_its_own() -> None:
    """A measurement of other tasks has only its overall number next to the published rows."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    for run in part["runs"]:
        run["by_task"] = {"chat": run["by_task"]["qa"]}
    found = published([part])
    assert found is not None
    ours = found.groups[0].rows[0].cells
    assert [cell.text for cell in ours[1:7]] == [NONE] * 6
    assert not any(cell.strong for cell in ours[1:7]) and ours[7].strong


def test_only_methods_of_both_sides_are_shown() -> None:
    """There is no table where no measured method was published."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    part["runs"] = [run for run in part["runs"] if run["method"] == "medusa_typical"]
    found = published([part])
    assert found is None


def test_what_was_measured_is_not_said_to_be_missing() -> None:
    """A published row is there as soon as one of the methods that it stands for was measured."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    for run in part["runs"]:
        run["method"] = "eagle" if run["method"] == "lookahead" else run["method"]
    found = published([part])
    assert found is not None
    missing = found.note.split("not measured here: ")[1].split(". ")[0].split(", ")
    assert "EAGLE" not in missing and "Lookahead" in missing
