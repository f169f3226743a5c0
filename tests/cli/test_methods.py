"""`foretoken methods`: the method table and the acceptance rules."""

from __future__ import annotations

import json

import pytest

from command_line import process, run
from foretoken import METHODS
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


def test_unknown_axes_are_refused() -> None:
    """One sentence with the choices."""
    found = process("methods", "--axis", "colour")
    assert found.returncode != 0 and "'verify'" in found.stderr and found.stderr.count("\n") == 1
