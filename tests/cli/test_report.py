"""`foretoken report`: a folder's pages, its numbers as JSON, and wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import synthetic
from foretoken.bench.record import read_results
from report_pages import page, run


def test_report_of_a_folder(tmp_path: Path) -> None:
    """Its numbers are printed and the pages written, with published ones where asked for."""
    synthetic.write(tmp_path, synthetic.results(temperatures=(0.0,), sizes=(1,)))
    found = run(tmp_path)
    assert found.exit_code == 0, found.output
    assert "1.52×" in found.stdout and "report.html" in found.stdout
    assert "leaderboard" not in found.stdout
    assert (tmp_path / "report.md").is_file() and "Table 5" not in page(tmp_path)
    assert "leaderboard" in run(tmp_path, "--reference").stdout
    assert "published: survey, Table 5" in page(tmp_path)


def test_report_as_json(tmp_path: Path) -> None:
    """As results.json has it, and no pages: a folder that is read only will do."""
    synthetic.write(tmp_path, synthetic.results(temperatures=(0.0,), sizes=(1,)))
    before = sorted(tmp_path.iterdir())
    [found] = json.loads(run(tmp_path, "--json").stdout)
    assert found == read_results(tmp_path / "results.json")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "b", "c"], "3 folders"),
        (["a", "--fail-on-regression"], "two to compare"),
        (["a", "b", "--reference"], "one folder"),
        (["a", "--reference", "--json"], "--reference is of the pages"),
        (["nowhere"], "no results.json"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    """For numbers of folders and flags that do not go together."""
    found = run(*arguments)
    assert found.exit_code == 1 and words in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_two_runs_with_nothing_in_common(tmp_path: Path) -> None:
    """They are no proof that nothing is worse."""
    for name, sizes in (("before", (1,)), ("after", (8,))):
        (tmp_path / name).mkdir()
        synthetic.write(tmp_path / name, synthetic.results(temperatures=(0.0,), sizes=sizes))
    both = tmp_path / "before", tmp_path / "after"
    assert "Nothing was measured in both." in run(*both).stdout
    found = run(*both, "--fail-on-regression")
    assert found.exit_code == 1 and "measured nothing alike" in found.stderr
    assert run(both[0], both[0], "--fail-on-regression").exit_code == 0


def test_help_has_an_example() -> None:
    """To copy from."""
    assert "Example" in run("--help").output
