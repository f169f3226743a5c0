"""`foretoken methods`: the method table and the acceptance rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import process, run
from foretoken import METHODS
from foretoken.cli.methods import _cell, _why_unusable, is_free
from foretoken.registry import verifier_names


def test_methods_as_data() -> None:
    """A list of objects, a column a key."""
    found = run("methods", "--json")
    rows = json.loads(found.stdout)
    assert [row["name"] for row in rows] == list(METHODS)
    keys = ["name", "drafter", "length", "tree", "verifier", "lossless", "trained", "paper"]
    assert all(list(row) == keys for row in rows)


@pytest.mark.parametrize(("width", "papers"), [(80, False), (100, False), (160, True)])
def test_methods_as_a_table(width: int, papers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole words at any width; who drafts and the papers where there is room, else how to see."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = run("methods")
    assert found.exit_code == 0 and all(f"\n{name} " in found.stdout for name in METHODS)
    assert ("Leviathan" in found.stdout, "--json" in found.stdout) == (papers, not papers)
    lines = found.stdout.splitlines()
    assert max(map(len, lines)) <= width and "…" not in found.stdout
    assert len(lines) < 2 * len(METHODS)
    if not papers:
        words = {word for row in METHODS.values() for word in f"{row.length} {row.tree}".split()}
        assert words <= set(found.stdout.split())


def test_drafters_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed with their package, without being imported; what can't be used is noted."""
    folder = tmp_path / "copiers-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: copiers\nVersion: 1.2\n")
    lines = [f"{name} = nowhere:Nothing" for name in ("theirs", "pld", "auto", "a+b")]
    (folder / "entry_points.txt").write_text("\n".join(["[foretoken.drafters]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    found = run("methods", "--json")
    rows = {row["name"]: row for row in json.loads(found.stdout)}
    assert rows["theirs"]["package"] == "copiers 1.2" and rows["theirs"]["lossless"] is None
    assert rows["theirs"]["drafter"] == "nowhere:Nothing" and "package" not in rows["pld"]
    assert [*rows] == [*METHODS, "theirs"]
    notes = found.stderr.splitlines()
    assert [note.split("'")[1] for note in notes] == ["a+b", "auto", "pld"]
    assert all('use it as "nowhere:Nothing".' in note for note in notes)
    table = run("methods").stdout
    assert "From installed packages" in table and "copiers 1.2" in table


def test_rules_as_data() -> None:
    """Every rule that the package finds, the lossless ones first, with what it claims."""
    rows = json.loads(run("methods", "--axis", "verify", "--json").stdout)
    assert sorted(row["name"] for row in rows) == verifier_names()
    keys = ["name", "lossless", "trees", "sampling", "kinds", "source"]
    assert all(list(row) == keys and row["kinds"] and row["source"] for row in rows)
    assert [row["lossless"] for row in rows] == sorted(row["lossless"] for row in rows)[::-1]
    claims = {row["name"]: row for row in rows}
    assert claims["speculative"]["lossless"] and not claims["speculative"]["trees"]
    assert not claims["typical"]["lossless"] and not claims["top_beta"]["sampling"]
    assert "without_replacement" not in claims["lenience"]["kinds"]


@pytest.mark.parametrize(("width", "sources"), [(80, False), (140, True)])
def test_rules_as_a_table(width: int, sources: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a rule; the sources where there is room, and never a line that is too long."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = run("methods", "--axis", "verify")
    assert found.exit_code == 0 and all(name in found.stdout for name in verifier_names())
    assert ("Leviathan et al. 2023" in found.stdout) == sources == ("--json" not in found.stdout)
    assert max(map(len, found.stdout.splitlines())) <= width


@pytest.mark.parametrize("axis", ["methods", "verify"])
def test_a_survey_has_no_axis(axis: str) -> None:
    """One sentence."""
    found = process("methods", "--survey", "--axis", axis)
    assert found.returncode != 0 and found.stderr.count("\n") == 1
    assert "leave out --axis or --survey" in found.stderr and not found.stdout


def test_unknown_axes_are_refused() -> None:
    """One sentence with the choices."""
    found = process("methods", "--axis", "colour")
    assert found.returncode == 2 and found.stderr.count("\n") == 1
    assert "'--axis': 'colour' is not one of 'methods', 'verify'." in found.stderr


def test_why_a_name_cannot_be_used() -> None:
    """Two packages have it, or foretoken has; any other one can."""
    assert "another package's" in _why_unusable("mine", ["mine", "mine"])
    assert "foretoken's own" in _why_unusable("pld", ["pld"])
    assert _why_unusable("mine", ["mine", "other"]) == ""


@pytest.mark.parametrize(
    "name", ["a:b", "a,b", "a+b", "auto", "online", "pld", "ngram", "small_lm"]
)
def test_names_that_are_not_free(name: str) -> None:
    """Signs that join methods, and names of ours, of drafters too."""
    assert not is_free(name) and is_free("mine")


def test_the_kinds_of_nodes_in_a_cell() -> None:
    kinds = ["chosen", "independent", "without_replacement", "auxiliary"]
    assert _cell(kinds) == "all" and _cell(kinds[1:3]) == "independent, without replacement"
    assert (_cell(True), _cell(False), _cell(3)) == ("yes", "no", "3")
