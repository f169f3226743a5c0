"""`foretoken methods --survey`: no row is empty, and what it names is there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import typer

from command_line import run
from foretoken import METHODS
from foretoken.cli.commands import app
from foretoken.cli.surveys import APPROXIMATE, CLAIMS, ENTRIES, EXACT, MISSING, TABLE, Entry, page

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "surveys.md"
SYSTEMS = (
    "SpecDec",
    "SpS",
    "SpecInfer",
    "DistillSpec",
    "Online Speculative",
    "CS. Drafting",
    "REST",
    "Blockwise Decoding",
    "Medusa",
    "PPD",
    "Self-Speculative",
    "Parallel Decoding",
    "Lookahead Decoding",
    "EAGLE",
)
"""Table 3 of Xia et al. 2024."""


PROOFS = {
    "test_company_and_chunks_change_nothing",
    "test_distribution",
    "test_distribution_is_the_targets",
    "test_drawn_trees_keep_the_distribution",
    "test_greedy_is_transformers_generate",
    "test_no_rule_that_learns_changes_the_distribution",
    "test_no_rule_that_looks_changes_the_distribution",
    "test_temperature_zero_is_exact_match",
    "test_text_is_the_targets",
    "test_text_stays_and_acceptance_rises",
    "test_the_distribution_is_the_targets",
    "test_the_plain_loops_text",
    "test_the_text_is_plain_decodings",
    "test_what_runs_through_transformers",
}
"""Tests that fail where a text, or its distribution, is another than plain decoding's."""


def named(entry: Entry) -> list[str]:
    return [name for name in entry.ours.split(", ") if name != "–"]


def test_table_3_is_whole() -> None:
    found = [entry.name for entry in ENTRIES if entry.survey == TABLE]
    assert all(any(name.startswith(system) for name in found) for system in SYSTEMS)
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_what_is_named_exists(entry: Entry) -> None:
    """Its methods, commands and test; only what is missing has no name, and it says why."""
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for name in named(entry):
        command = name.removeprefix("foretoken ")
        assert command in (METHODS if command == name else commands), name
    assert entry.claim in CLAIMS
    assert bool(named(entry)) == (entry.claim != MISSING)
    assert entry.note or entry.claim in (EXACT, APPROXIMATE)
    file, function = entry.test.split("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_claim_is_the_tables(entry: Entry) -> None:
    """Where a method is named, it claims no more than its row of the method table."""
    rows = [METHODS[name] for name in named(entry) if name in METHODS]
    if entry.claim == EXACT:
        assert all(row.lossless for row in rows)
    elif entry.claim == APPROXIMATE:
        assert not any(row.lossless for row in rows)


def test_what_is_claimed_exact_is_proved() -> None:
    """By a test of texts or distributions, and not by one of losses, shapes or plans."""
    proofs = {entry.test.split("::")[1] for entry in ENTRIES if entry.claim == EXACT}
    assert proofs == PROOFS


def test_the_page_is_what_the_data_say() -> None:
    """Write it again by `PAGE.write_text(page())`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows, as a table of whole words and as data."""
    rows = json.loads(run("methods", "--survey", "--json").stdout)
    assert [row["name"] for row in rows] == [entry.name for entry in ENTRIES]
    monkeypatch.setenv("COLUMNS", "200")
    shown = re.sub(r"\s+", " ", run("methods", "--survey").stdout)
    for entry in ENTRIES:
        assert entry.name in shown and entry.test in shown and entry.survey in shown
    assert "…" not in shown
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("methods", "--survey").stdout
    assert max(map(len, narrow.splitlines())) <= 80 and "test" in narrow
