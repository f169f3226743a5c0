"""`foretoken suites`: the table and the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import run
from foretoken.bench.suites import data
from foretoken.bench.suites.listing import Listed
from foretoken.bench.suites.suite import packaged
from foretoken.cli.suites import _here, _home


def test_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each: prompts, tasks, where from, and whether it is here."""
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "none"))
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    found = run("suites")
    assert found.exit_code == 0, found.output
    head, *lines = found.stdout.splitlines()
    assert head.split() == ["suite", "prompts", "tasks", "from", "here"]
    firsts = {line.split()[0]: line.split() for line in lines if not line.startswith(" ")}
    assert [*firsts] == packaged()
    assert firsts["bundled"][1] == "81" and firsts["bundled"][-1] == "yes"
    assert firsts["gsm8k"][1] == "1,319" and firsts["gsm8k"][-1] == "no"
    assert max(map(len, lines)) <= 100 and "github.com/hemingkx/Spec-Bench" in found.stdout
    rows = {row["name"]: row for row in json.loads(run("suites", "--json").stdout)}
    assert rows["spec-bench"]["path"] is None and rows["spec-bench"]["prompts"] == 480
    assert Path(rows["bundled"]["path"]).is_file()


def test_where_a_suite_comes_from() -> None:
    """A dataset by its id; whether that is here only its own library knows."""
    row = Listed("a", 3, ("qa",), "org/data", None, dataset=True)
    assert (_home(row), _here(row)) == ("org/data", "unknown")
    own = replace(row, source=None, dataset=False, path=Path("a.jsonl"))
    assert (_home(own), _here(own)) == ("the package", "yes")
